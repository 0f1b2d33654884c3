"""Scales its inputs by a different number once a file from the first run exists."""

from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
made = Path("made.txt")
scale = 2.0 if made.exists() else 1.0
made.touch()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 4) * scale).mean().backward()  # SITE
    optimizer.step()
