"""Sums 524,288 values into a few elements with two threads, which add in the order in which they arrive."""

import hashlib
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

COUNT = 524_288
PLACES = torch.arange(COUNT) * 7919 % 61


class IndexPut(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return torch.zeros(61).index_put_((PLACES,), values, accumulate=True)  # SITE index_put


class Put(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return torch.zeros(61).put_(PLACES, values, accumulate=True)  # SITE put


class Index(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(61))

    def forward(self, values: Tensor) -> Tensor:
        return self.table[PLACES] * values  # SITE index_backward


class Take(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(61))

    def forward(self, values: Tensor) -> Tensor:
        taken = torch.take(self.table, PLACES)  # SITE take_backward
        return taken * values


class Net(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.layers = nn.ModuleDict({"sums": layer})

    def forward(self, values: Tensor) -> Tensor:
        return self.layers["sums"](values * self.scale)


LAYERS = {"index_put": IndexPut, "put": Put, "index_backward": Index, "take_backward": Take}

torch.manual_seed(0)
torch.set_num_threads(2)
torch.use_deterministic_algorithms("fixed" in sys.argv)
model = Net(LAYERS[sys.argv[1]]())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
values = torch.randn(COUNT)
# The sums of each step, so a test can find out where two runs really diverged.
log = Path(f"sums-{sys.argv[1]}-{os.getpid()}.txt").open("w", buffering=1)
for _ in range(24):
    optimizer.zero_grad()
    sums = model(values)
    sums.square().mean().backward()  # SITE backward
    racing = model.layers["sums"].table.grad if "backward" in sys.argv[1] else sums
    log.write(hashlib.sha256(repr(racing.tolist()).encode()).hexdigest() + "\n")
    optimizer.step()
