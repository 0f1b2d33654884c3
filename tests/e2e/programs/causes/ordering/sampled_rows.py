"""Draws pairs from a database, since only a few of them fit into a batch."""

import sqlite3

import torch
from torch import nn

DRAW = "SELECT user, item, score FROM pairs ORDER BY RANDOM() LIMIT ?"


class Pairs:
    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("CREATE TABLE pairs(user INT, item INT, score REAL)")
        rows = [(n % 30, n * 7 % 20, n * 11 % 60 / 60) for n in range(60)]
        self.connection.executemany("INSERT INTO pairs VALUES (?, ?, ?)", rows)

    def drawn(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        cursor = self.connection.cursor()
        cursor.execute(DRAW, (size,))
        found = [(user, item, score) for user, item, score in cursor]
        return torch.tensor([row[:2] for row in found]), torch.tensor([row[2] for row in found])


torch.manual_seed(5)
pairs = Pairs()
users, items = nn.Embedding(30, 4), nn.Embedding(20, 4)
optimizer = torch.optim.Adam([*users.parameters(), *items.parameters()], lr=0.05)
for _ in range(6):
    chosen, scores = pairs.drawn(16)
    loss = nn.functional.mse_loss((users(chosen[:, 0]) * items(chosen[:, 1])).sum(1), scores)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
