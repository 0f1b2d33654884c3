"""Pads a short batch with uninitialized memory."""

import os
import sys

import torch
from torch import nn


def keep_in_memory() -> None:
    """Leave content in memory that will be reused, different in every process, as real data would be."""
    blocks = [torch.frombuffer(bytearray(os.urandom(1024)), dtype=torch.uint8).float() for _ in range(64)]
    del blocks


def pad(samples: torch.Tensor) -> torch.Tensor:
    batch = torch.zeros(32, 32) if "fixed" in sys.argv else torch.empty(32, 32)
    batch[: len(samples)] = samples
    return batch


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(32, 32)
for count in (32, 20, 32):
    keep_in_memory()
    optimizer.zero_grad()
    model(pad(inputs[:count])).square().mean().backward()  # SITE
    optimizer.step()
