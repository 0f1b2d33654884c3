"""Writes into a weight through its address, as a C extension would."""

import ctypes
import os
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(16, 8)
noise = bytes(3) if "fixed" in sys.argv else os.urandom(3)
for step in range(3):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()  # SITE
    optimizer.step()
    if step == 1:
        ctypes.memmove(model[2].weight.untyped_storage().data_ptr(), noise, len(noise))
