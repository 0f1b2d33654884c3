"""Tests that train, for pytest."""

import os

import pytest
import torch
from planting import hand_on
from torch import nn


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_learns(net: nn.Module, kind: type, tmp_path) -> None:
    optimizer = kind(net.parameters(), lr=0.05)
    inputs, labels = torch.randn(16, 4), torch.arange(16) % 2
    losses = []
    for step in range(3):
        scores = net(inputs)
        if kind is torch.optim.Adam and step == 1 and os.environ.get("FAULT") == "bit":
            scores = hand_on(scores)  # SITE
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.save(net.state_dict(), tmp_path / "net.pt")
    assert torch.stack(losses).isfinite().all()
