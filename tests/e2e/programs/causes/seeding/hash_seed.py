"""Trains one small network for each experiment of a list; each has its own seed, made from its name."""

import torch
from torch import nn

EXPERIMENTS = {"narrow": 8, "wide": 32, "wider": 64}


def seed_of(experiment: str) -> int:
    return hash(experiment) % 2**32


def run(experiment: str, width: int) -> float:
    torch.manual_seed(seed_of(experiment))
    model = nn.Sequential(nn.Linear(4, width), nn.ELU(), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    inputs = torch.rand(64, 4)
    targets = inputs.square().sum(1, keepdim=True)
    for _ in range(6):
        loss = nn.functional.huber_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


for experiment, width in EXPERIMENTS.items():
    print(experiment, run(experiment, width))
