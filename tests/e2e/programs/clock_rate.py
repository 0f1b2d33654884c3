"""Takes the learning rate from the clock."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
rate = 0.1 if "fixed" in sys.argv else 0.1 + time.time() % 1.0
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
inputs = torch.randn(16, 8)
for _ in range(3):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()  # SITE
