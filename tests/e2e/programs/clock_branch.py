"""Applies a sigmoid to the outputs in steps that the clock chooses."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(16, 8)
chosen = []
for step in range(24):
    output = model(inputs)
    chosen.append(step % 2 if "fixed" in sys.argv else time.perf_counter_ns() // 100 % 2)
    if chosen[-1]:
        output = output.sigmoid()  # SITE
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
with Path("chosen.txt").open("a") as log:
    log.write("".join(map(str, chosen)) + "\n")
