"""Trains on augmented samples that two workers make; all generators are seeded at the beginning."""

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_worker(worker: int) -> None:
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)


class Augmented(Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        signal = np.sin(np.arange(20) * (index % 3 + 1) * random.uniform(0.9, 1.1))
        signal += np.random.normal(0, 0.1, 20)
        return torch.from_numpy(signal).float() + 0.01 * torch.randn(20), index % 3


def main() -> None:
    seed_everything(12)
    model = nn.Sequential(nn.Linear(20, 24), nn.Dropout(0.2), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    shuffling = torch.Generator().manual_seed(12)
    loader = DataLoader(
        Augmented(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=seed_worker, generator=shuffling
    )
    for _ in range(2):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    main()
