"""Repeatedly fills one buffer from an unseeded NumPy generator, and trains on a tensor that shares its memory."""

import sys

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
generator = np.random.default_rng(0 if "fixed" in sys.argv else None)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
buffer = np.ones((16, 8), dtype=np.float32)
inputs = torch.from_numpy(buffer)
for step in range(3):
    if step:
        buffer[:] = generator.normal(size=buffer.shape)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()  # SITE
    optimizer.step()
