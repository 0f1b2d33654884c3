"""Trains for a third of a second."""

import sys
import time
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(16, 8)
end, steps = time.monotonic() + 0.3, 0
while steps < 20 if "fixed" in sys.argv else time.monotonic() < end:
    loss = model(inputs).square().mean()  # SITE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
with Path("steps.txt").open("a") as log:
    log.write(f"{steps}\n")
