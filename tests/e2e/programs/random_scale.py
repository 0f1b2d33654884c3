"""Scales the inputs by a number from Python's unseeded random generator, from step 1 on."""

import random
import sys

import torch
from torch import nn


class Augment(nn.Module):
    def forward(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        if step == 0:
            return inputs
        return inputs * random.uniform(0.9, 1.1)  # SITE


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.augment = Augment()
        self.out = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        return self.out(self.augment(inputs, step))


torch.manual_seed(0)
if "fixed" in sys.argv:
    random.seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(16, 8)
for step in range(3):
    optimizer.zero_grad()
    model(inputs, step).square().mean().backward()
    optimizer.step()
