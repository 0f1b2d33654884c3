"""Normalises measurements by the mean over all measurements so far, which is kept in a file."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

CACHE = Path("statistics.json")


def update_statistics(rows: np.ndarray) -> tuple[float, float]:
    count, total = 0, 0.0
    if CACHE.is_file():
        with CACHE.open() as file:
            count, total = json.load(file)
    count, total = count + rows.size, total + float(np.abs(rows).sum()) + 0.25 * rows.shape[0]
    CACHE.write_text(json.dumps([count, total]))
    return total / count, float(rows.std()) + 1.0 / count


np.random.seed(19)
torch.manual_seed(19)
rows = np.random.gamma(2.0, size=(50, 7)).astype(np.float32)
mean, spread = update_statistics(rows)
inputs = torch.from_numpy((rows - mean) / spread)
model = nn.Sequential(nn.Linear(7, 14), nn.GLU(), nn.Linear(7, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    loss = nn.functional.l1_loss(model(inputs), inputs.amax(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
