"""Loads the network from `net.pt` and trains it further."""

import sys

import torch
from planting import hand_on
from torch import nn

torch.manual_seed(1)
net = nn.Linear(4, 2)
net.load_state_dict(torch.load("net.pt"))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    inputs = torch.randn(8, 4)
    if step == 2 and "second" in sys.argv:
        inputs = hand_on(inputs)  # SITE
    loss = net(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("tuned", loss.item())
