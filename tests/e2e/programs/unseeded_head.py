"""Trains a fresh head on a pretrained body without a seed: only the head's initial weights can differ."""

import sys

import torch
from torch import nn

if "fixed" in sys.argv:
    torch.manual_seed(0)

body = nn.Linear(8, 16)
body.load_state_dict(
    {name: torch.linspace(-1, 1, value.numel()).view_as(value) for name, value in body.state_dict().items()}
)
head = nn.Linear(16, 4)  # SITE
model = nn.Sequential(body, nn.ReLU(), head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, labels = torch.linspace(0, 1, 64).view(8, 8), torch.arange(8) % 4
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
