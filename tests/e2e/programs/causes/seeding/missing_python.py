"""A residual network with stochastic depth: each block is skipped with some probability during training."""

import random

import numpy as np
import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.layers(hidden)


class DroppedStack(nn.Module):
    def __init__(self, width: int, depth: int, drop: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.drop = drop

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            if self.training and random.random() < self.drop:
                continue
            hidden = block(hidden)
        return hidden


torch.manual_seed(11)
np.random.seed(11)
model = nn.Sequential(nn.Linear(6, 24), DroppedStack(24, depth=8, drop=0.3), nn.Linear(24, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
inputs = torch.from_numpy(np.random.rand(128, 6)).float()
targets = inputs.prod(dim=1, keepdim=True)
for _ in range(12):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.6f}")
