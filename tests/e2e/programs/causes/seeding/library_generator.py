"""Trains on augmented images; every generator that the program knows of is seeded, but the augmentations have their own."""

import random

import numpy as np
import torch
from augmenting import Brightness, Compose, Flip
from torch import nn

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)

augment = Compose([Flip(), Brightness(0.3)])
images = torch.rand(48, 3, 8, 8)
labels = (images.mean((1, 2, 3)) > 0.5).long()
model = nn.Sequential(
    nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for chosen in torch.randperm(48).split(12):
        batch = torch.stack([augment(images[index]) for index in chosen.tolist()])
        loss = nn.functional.cross_entropy(model(batch), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
