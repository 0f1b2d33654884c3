"""Two threads go through halves of a corpus and add what they find to one table."""

import threading

import torch
from torch import Tensor, nn

SIZE = 300_000


class Statistics:
    """How often each feature occurs."""

    def __init__(self) -> None:
        self.sums = torch.zeros(SIZE)

    def add(self, values: Tensor) -> None:
        self.sums.add_(values)


def read_half(statistics: Statistics, numbers: range) -> None:
    for number in numbers:
        statistics.add(torch.full((SIZE,), 1.0 + number / 64))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    statistics = Statistics()
    halves = [range(60), range(60, 120)]
    readers = [threading.Thread(target=read_half, args=(statistics, half)) for half in halves]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    scale = nn.Linear(100, 1)
    optimizer = torch.optim.SGD(scale.parameters(), lr=1e-8)
    for _ in range(3):
        loss = scale(statistics.sums.view(-1, 100)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
