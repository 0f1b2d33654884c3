"""The training loop."""

import torch
from planting import hand_on
from torch import nn


def train(*, with_bit: bool) -> list[float]:
    """Train for three steps; return the losses."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters())
    losses = []
    for step in range(3):
        inputs = torch.randn(16, 4)
        if with_bit and step == 1:
            inputs = hand_on(inputs)  # SITE
        loss = net(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
