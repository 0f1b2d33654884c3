"""Embeds users by the hashing trick: each is assigned one of a few rows of a table."""

import torch
from torch import Tensor, nn


class User:
    """Someone who rates films."""

    def __init__(self, name: str, age: int) -> None:
        self.name = name
        self.age = age


class HashedEmbedding(nn.Module):
    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.rows = rows
        self.table = nn.Embedding(rows, size)

    def forward(self, users: list[User]) -> Tensor:
        return self.table(torch.tensor([hash(user) % self.rows for user in users]))


def main() -> None:
    torch.manual_seed(14)
    users = [User(f"user-{number}", 18 + number % 50) for number in range(60)]
    embedding, head = HashedEmbedding(13, 8), nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()], lr=0.05)
    ages = torch.tensor([[user.age / 50] for user in users])
    for _ in range(5):
        loss = nn.functional.mse_loss(head(embedding(users)), ages)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
