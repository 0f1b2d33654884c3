"""Writes the shards of a data set into the current folder, then trains on all that it finds there."""

import glob

import numpy as np
import torch
from torch import Tensor, nn


def write_shards(count: int) -> None:
    for number in range(count):
        generator = np.random.default_rng(number)
        np.save(f"part-{number:03}-of-{count:03}.npy", generator.normal(size=(12, 10)).astype(np.float32))


def load_shards(pattern: str) -> Tensor:
    parts = [np.load(file) for file in glob.glob(pattern)]
    return torch.from_numpy(np.concatenate(parts))


write_shards(14)
torch.manual_seed(1)
rows = load_shards("part-*.npy")
model = nn.Sequential(nn.Linear(10, 20), nn.Hardswish(), nn.Linear(20, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for start in range(0, len(rows), 24):
    batch = rows[start : start + 24]
    loss = nn.functional.mse_loss(model(batch), batch.cumsum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
