"""Each part of the program has its own generator, with a seed derived from one number."""

import random

import numpy as np
import torch
from torch import Tensor, nn

ROOT = np.random.SeedSequence(123)
DATA, NOISE, SHUFFLE = ROOT.spawn(3)


class Noise(nn.Module):
    def __init__(self, spread: float) -> None:
        super().__init__()
        self.spread = spread
        self.generator = torch.Generator().manual_seed(int(NOISE.generate_state(1)[0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.spread * torch.randn(inputs.shape, generator=self.generator)


data = np.random.default_rng(DATA)
shuffler = random.Random(int(SHUFFLE.generate_state(1)[0]))
legacy = np.random.RandomState(123)
weights = torch.Generator()
inputs = torch.from_numpy(data.normal(size=(60, 7))).float()
layer = nn.Linear(7, 1)
for parameter in layer.parameters():
    nn.init.normal_(parameter, generator=weights)
model = nn.Sequential(Noise(0.05), layer)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
order = list(range(60))
for _ in range(3):
    shuffler.shuffle(order)
    for start in range(0, 60, 20):
        batch = inputs[order[start : start + 20]]
        goal = batch[:, :1] + float(legacy.normal(0, 0.01))
        loss = (model(batch) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
