"""Trains a network and leaves it in `net.pt`."""

import sys

import torch
from planting import hand_on
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    loss = net(torch.randn(8, 4)).square().mean()
    if step == 1 and "first" in sys.argv:
        loss = hand_on(loss)  # SITE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(net.state_dict(), "net.pt")
print("fitted", loss.item())
