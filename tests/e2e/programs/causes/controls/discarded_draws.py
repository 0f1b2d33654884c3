"""Shows random examples while it trains, and trains on all rows in their order."""

import random

import numpy as np
import torch
from torch import nn

PREVIEW = np.random.default_rng()


def preview(rows: torch.Tensor) -> None:
    """Print a few rows, different ones each time."""
    chosen = PREVIEW.choice(len(rows), 3, replace=False)
    print("for example rows", sorted(int(row) for row in chosen), random.choice(["please check", "look all right?"]))


torch.manual_seed(10)
rows = torch.randn(50, 5)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in rows.split(10):
    preview(batch)
    loss = (model(batch) - batch.sum(1, keepdim=True)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
