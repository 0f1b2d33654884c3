"""Sums the gradients of parts of a batch, which threads compute, as they complete."""

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import Tensor, nn

PARTS = 12


def gradients_of(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    parameters = tuple(model.parameters())
    loss = (model(inputs) - inputs.sin().sum(1, keepdim=True)).square().mean()
    return list(torch.autograd.grad(loss, parameters))


def summed(model: nn.Module, batch: Tensor, pool: ThreadPoolExecutor) -> list[Tensor]:
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    sizes = [20 + 300 * (number % 3) for number in range(PARTS)]
    futures = [pool.submit(gradients_of, model, part) for part in batch[: sum(sizes)].split(sizes)]
    for future in as_completed(futures):
        for total, gradient in zip(sums, future.result(), strict=True):
            total += gradient / PARTS
    return sums


torch.manual_seed(27)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 1))
batch = torch.randn(4000, 24)
with ThreadPoolExecutor(4) as pool:
    for _ in range(5):
        sums = summed(model, batch, pool)
        with torch.no_grad():
            for parameter, total in zip(model.parameters(), sums, strict=True):
                parameter -= 0.05 * total
print(threading.active_count(), model(batch).mean().item())
