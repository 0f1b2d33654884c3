"""Trains with dropout, augmentation and two workers; saves after the last epoch, and continues from a saved one.

Arguments: the total number of epochs, and a checkpoint, which is read if it exists and written after the last epoch.
"""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import determinism


class Samples(Dataset[torch.Tensor]):
    """Random augmentation of fixed images."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index)) + random.random() + np.random.rand() + torch.rand(8)


def main() -> None:
    epochs, checkpoint = int(sys.argv[1]), Path(sys.argv[2])
    seeds = determinism.seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(
        Samples(), batch_size=8, shuffle=True, num_workers=2,
        worker_init_fn=seeds.worker_init_fn, generator=seeds.generator(),
    )  # fmt: skip
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        seeds.load_state_dict(saved["seeds"])
        first = saved["seeds"]["epoch"] + 1
    for epoch in range(first, epochs):
        seeds.begin(epoch=epoch, task="train")
        for batch in loader:
            optimizer.zero_grad()
            model(batch / 32).square().mean().backward()
            optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seeds": seeds.state_dict()}
    torch.save(saved, checkpoint)
    print(
        first, hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in model.state_dict().values())).hexdigest()
    )


if __name__ == "__main__":
    main()
