"""Trains a small convolutional network on digits to which noise is added as they are read."""

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class NoisyDigits(Dataset):
    """Seven-segment digits of 12 by 12 pixels."""

    SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
    PLACES = {
        "a": (slice(1, 2), slice(3, 9)),
        "b": (slice(1, 6), slice(8, 9)),
        "c": (slice(6, 11), slice(8, 9)),
        "d": (slice(10, 11), slice(3, 9)),
        "e": (slice(6, 11), slice(3, 4)),
        "f": (slice(1, 6), slice(3, 4)),
        "g": (slice(5, 6), slice(3, 9)),
    }

    def __init__(self, count: int) -> None:
        self.labels = [number % 10 for number in range(count)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = np.zeros((12, 12), dtype=np.float32)
        for segment in self.SEGMENTS[self.labels[index]]:
            image[self.PLACES[segment]] = 1.0
        image += np.random.normal(0.0, 0.2, image.shape).astype(np.float32)
        return torch.from_numpy(image)[None], self.labels[index]


def train(seed: int = 3) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 25, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        correct = 0
        for images, labels in DataLoader(NoisyDigits(120), batch_size=24, shuffle=True):
            scores = model(images)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, labels).backward()
            optimizer.step()
            correct += int((scores.argmax(1) == labels).sum())
        print(f"epoch {epoch}: {correct} of 120 right")


train()
