"""Jitters the weights through NumPy after step 0: NumPy shares the tensor's memory, so the framework does not notice."""

import sys

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
generator = np.random.default_rng(0 if "fixed" in sys.argv else None)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(16, 8)
weights = model[2].weight.detach().numpy()
for step in range(3):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()  # SITE
    optimizer.step()
    if step == 0:
        weights += generator.normal(0, 0.01, weights.shape).astype(np.float32)
