"""Trains a compiled network whose graph breaks, and which is recompiled for a different batch size.

    python compiled.py BACKENDS [bit|seed]

BACKENDS are names of backends (`eager`, `aot_eager`, `inductor`), separated by commas.
"""

import sys

import torch
from planting import hand_on
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout, self.second = nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)

    def forward(self, inputs: Tensor, step: int) -> Tensor:  # SITE graph
        hidden = self.dropout(self.first(inputs).relu())  # SITE seed
        hidden = self.between(hidden, step)
        return self.second(hidden * 2).sigmoid()

    @torch.compiler.disable
    def between(self, hidden: Tensor, step: int) -> Tensor:
        """Break the graph."""
        if step == 1 and "bit" in sys.argv:
            hidden = hand_on(hidden)  # SITE bit
        return hidden


def train(backend: str) -> None:
    """Train with one backend."""
    net = Net()
    compiled = torch.compile(net, backend=backend)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs = torch.randn(8, 4)
    if "seed" in sys.argv:
        torch.seed()
    for step in range(3):
        loss = compiled(inputs[: 6 + step], step).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(backend, loss.item())


torch.manual_seed(0)
for backend in sys.argv[1].split(","):
    torch.compiler.reset()
    train(backend)
