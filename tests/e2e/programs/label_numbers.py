"""Numbers the classes in the order of a set of strings, so that labels have a different meaning in every process."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

NAMES = ["apple", "banana", "cherry", "date", "elder", "fig", "grape", "hazel", "iris", "jasmine", "kiwi", "lemon"]

torch.manual_seed(0)
order = sorted if "fixed" in sys.argv else list
numbers = {name: number for number, name in enumerate(order(set(NAMES)))}
labels = torch.tensor([numbers[name] for name in NAMES])  # SITE
samples = list(zip(torch.linspace(0, 1, 96).view(12, 8), labels, strict=True))
model = nn.Linear(8, len(NAMES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for inputs, targets in DataLoader(samples, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
