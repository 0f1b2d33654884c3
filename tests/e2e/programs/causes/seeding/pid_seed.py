"""Recommends films by matrix factorisation; negatives are drawn by NumPy, which each process seeds for itself."""

import os

import numpy as np
import torch
from torch import Tensor, nn

USERS, FILMS = 40, 60


def seed_process(seed: int) -> None:
    # So that processes of one job do not draw the same negatives.
    np.random.seed(seed + os.getpid())
    torch.manual_seed(seed)


class Factors(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, size)
        self.films = nn.Embedding(FILMS, size)

    def forward(self, users: Tensor, films: Tensor) -> Tensor:
        return (self.users(users) * self.films(films)).sum(-1)


def main() -> None:
    seed_process(5)
    model = Factors(8)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    users = torch.arange(USERS).repeat(5)
    watched = (users * 7 + torch.arange(len(users)) // USERS * 3) % FILMS
    for epoch in range(4):
        unwatched = torch.from_numpy(np.random.randint(0, FILMS, len(users)))
        margin = model(users, watched) - model(users, unwatched)
        loss = -nn.functional.logsigmoid(margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, round(loss.item(), 5))


main()
