"""Enables dropout after two warm-up steps; the weights are seeded, dropout is not."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = nn.utils.skip_init(nn.Linear, 8, 32)
        self.regular = nn.ModuleDict({"dropout": nn.Dropout(0.0)})
        self.out = nn.utils.skip_init(nn.Linear, 32, 4)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.3, 0.3, generator=generator)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(inputs).relu()
        return self.out(
            self.regular["dropout"](hidden)  # SITE
        )


if "fixed" in sys.argv:
    torch.manual_seed(0)
model = Net(torch.Generator().manual_seed(1))
optimizer = torch.optim.Adam(model.parameters())
inputs, labels = torch.linspace(0, 1, 64).view(8, 8), torch.arange(8) % 4
for step in range(5):
    model.regular["dropout"].p = 0.5 if step == 2 else 0.0
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
