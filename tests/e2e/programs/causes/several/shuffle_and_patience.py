"""Trains with shuffled batches until the patience of the user runs out."""

import random
import time

import torch
from torch import nn


class Patience:
    """Stops once training has taken long enough."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.started = time.monotonic()

    def is_over(self) -> bool:
        return time.monotonic() - self.started > self.seconds


def batches(count: int, size: int, shuffler: random.Random) -> list[list[int]]:
    order = list(range(count))
    shuffler.shuffle(order)
    return [order[start : start + size] for start in range(0, count, size)]


def main() -> None:
    torch.manual_seed(58)
    shuffler = random.Random()
    inputs = torch.randn(96, 5)
    model = nn.Sequential(nn.Linear(5, 20), nn.Softsign(), nn.Linear(20, 1))
    optimizer = torch.optim.ASGD(model.parameters(), lr=0.05)
    patience, epochs = Patience(0.8), 0
    while not patience.is_over():
        for batch in batches(96, 48, shuffler):
            loss = nn.functional.mse_loss(model(inputs[batch]), inputs[batch].norm(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epochs += 1
    print(epochs, loss.item())


if __name__ == "__main__":
    main()
