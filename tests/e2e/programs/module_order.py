"""Applies named residual branches in the order of a set of strings."""

import sys
from pathlib import Path

import torch
from torch import nn

NAMES = {"wide", "deep", "local", "global", "gated", "plain", "mixed", "sparse", "dense", "tied", "bare"}
ORDER = sorted if "fixed" in sys.argv else list


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({name: nn.Linear(8, 8) for name in sorted(NAMES)})

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for name in ORDER(NAMES):
            hidden = hidden + self.branches[name](hidden).tanh()  # SITE
        return hidden


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), Branches(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(16, 4)
for _ in range(2):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
with Path("order.txt").open("a") as log:
    log.write(" ".join(ORDER(NAMES)) + "\n")
