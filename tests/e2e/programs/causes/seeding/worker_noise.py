"""Trains a denoiser whose weights have a fixed start; the noise is drawn in the workers, whose seeds the loader draws."""

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, signals: Tensor, scale: float) -> None:
        self.signals = signals
        self.scale = scale

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        clean = self.signals[index]
        return clean + self.scale * torch.randn(clean.shape), clean


def initialize(module: nn.Module, generator: np.random.Generator) -> None:
    for parameter in module.parameters():
        values = generator.normal(0, 0.2, parameter.shape)
        parameter.data.copy_(torch.from_numpy(values))


random.seed(10)
np.random.seed(10)
model = nn.utils.skip_init(nn.Linear, 32, 32)
initialize(model, np.random.default_rng(10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
signals = torch.sin(torch.outer(torch.arange(1.0, 25.0), torch.linspace(0, 3, 32)))
for noisy, clean in DataLoader(Noisy(signals, 0.1), batch_size=8, num_workers=1):
    loss = (model(noisy) - clean).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
