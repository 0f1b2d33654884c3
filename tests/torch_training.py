"""Small PyTorch training runs, which tests run twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def train(net: nn.Module, batches: list[Any], loss_of: Callable[..., Tensor], optimizer: Any = None) -> list[Any]:
    """Train for a few steps; return the losses, the parameters, buffers and gradients, and the optimizer state."""
    optimizer = optimizer or torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = [value for group in optimizer.state.values() for value in group.values()]
    return [torch.tensor(losses), net.state_dict(), [parameter.grad for parameter in net.parameters()], state]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(count)]
