"""Prepares parts of the data in threads, and puts each where it belongs, no matter which is ready first."""

import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import nn


def prepare(number: int) -> torch.Tensor:
    size = 400_000 if number % 3 == 0 else 10_000
    checksum = zlib.crc32(zlib.compress(bytes(number) * (size // (number + 1))))
    return torch.sin(torch.arange(10.0) * (checksum % 100 + 1)).expand(4, 10)


def prepare_all(count: int) -> torch.Tensor:
    parts: list[torch.Tensor | None] = [None] * count
    with ThreadPoolExecutor(4) as pool:
        places = {pool.submit(prepare, number): number for number in range(count)}
        for future in as_completed(places):
            parts[places[future]] = future.result()
    return torch.cat([part for part in parts if part is not None])


torch.manual_seed(3)
data = prepare_all(20)
model = nn.Sequential(nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in data.split(16):
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
