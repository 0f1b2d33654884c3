"""Trains and logs its speed, with the time, the process and a name for the run."""

import logging
import os
import time
import uuid
from datetime import datetime

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
log = logging.getLogger("training")


def main() -> None:
    run = f"{datetime.now():%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"
    log.info("run %s on %d", run, os.getpid())
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(64, 10)
    started, slowest = time.perf_counter(), 0.0
    for step in range(10):
        before = time.perf_counter()
        loss = nn.functional.mse_loss(model(inputs), inputs.abs().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slowest = max(slowest, time.perf_counter() - before)
        if step % 5 == 4:
            log.info(
                "step %d: loss %.4f, %.1f steps/s", step, loss.item(), (step + 1) / (time.perf_counter() - started)
            )
    log.info("slowest step %.4f s", slowest)


main()
