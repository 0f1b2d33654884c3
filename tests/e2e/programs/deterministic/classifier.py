"""An image classifier with dropout, augmentation and two workers; prints a digest of its weights. Nothing is seeded."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

CLASSES = 4


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Squares of noise around a brightness that depends on the class, flipped and shifted at random."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % CLASSES
        image = np.full((1, 12, 12), label, dtype="float32") + 0.1 * np.random.randn(1, 12, 12).astype("float32")
        if random.random() < 0.5:
            image = image[:, :, ::-1].copy()
        return torch.from_numpy(image) + 0.1 * torch.rand(1), label


class Classifier(torch.nn.Module):
    """Convolution, dropout, an indexed table (whose gradient is summed by threads), and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 8, 3)
        self.table = torch.nn.Parameter(torch.randn(16))
        self.output = torch.nn.Linear(8 * 10 * 10, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.convolution(images))
        levels = (features.detach() * 4).long().clamp(0, 15).repeat(8, 1, 1, 1)
        features = features + self.table[levels].view(8, *features.shape).mean(0)
        return self.output(torch.dropout(features.flatten(1), 0.3, train=True))


def main() -> None:
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Images(), batch_size=32, shuffle=True, num_workers=2)
    for _ in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
