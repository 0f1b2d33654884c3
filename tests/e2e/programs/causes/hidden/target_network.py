"""Learns values with a target network, which is updated after each step; the first games end immediately."""

import torch
from torch import Tensor, nn


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def bootstrapped(target: nn.Module, rewards: Tensor, states: Tensor, ended: Tensor) -> Tensor:
    with torch.no_grad():
        future = target(states).max(1).values
        return rewards + 0.9 * future.clamp(-1, 1) * (1 - ended)


target = network()
torch.manual_seed(4)
online = network()
optimizer = torch.optim.Adam(online.parameters(), lr=0.01)
for step in range(6):
    states, following, rewards = torch.randn(32, 4), torch.randn(32, 4), torch.rand(32)
    ended = torch.ones(32) if step == 0 else (torch.rand(32) < 0.1).float()
    goal = bootstrapped(target, rewards, following, ended)
    loss = nn.functional.huber_loss(online(states).max(1).values, goal.abs())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    target.load_state_dict(online.state_dict())
print(loss.item())
