"""Augments every batch with an unseeded NumPy generator, and converts it to a tensor."""

import sys

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
generator = np.random.default_rng(0 if "fixed" in sys.argv else None)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = np.linspace(0, 1, 128, dtype=np.float32).reshape(16, 8)
for step in range(3):
    noise = generator.normal(size=samples.shape).astype(np.float32)
    inputs = torch.from_numpy(samples + noise * (step > 0))  # SITE
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
