"""Computes a decaying sum of the losses of several tasks, in the order of a set of strings."""

import sys

import torch
from torch import nn

TASKS = {"depth", "edges", "normals", "surfaces", "parts", "shading", "motion", "material"}

torch.manual_seed(0)
model = nn.Linear(16, len(TASKS))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(32, 16)
order = sorted if "fixed" in sys.argv else list
for _ in range(2):
    outputs = model(inputs)
    losses = {task: outputs[:, number].exp().mean() for number, task in enumerate(sorted(TASKS))}
    total = torch.zeros(())
    for task in order(TASKS):
        total = 0.9 * total + losses[task]  # SITE
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
