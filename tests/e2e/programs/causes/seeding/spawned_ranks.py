"""Two processes train with averaged gradients; each adds its own noise to its part of the data."""

import random
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch import nn

RANKS = 2


def set_seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad)
        parameter.grad /= RANKS


def train(rank: int, weights: dict[str, torch.Tensor], meeting: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 5))
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = torch.linspace(-1, 1, 80).view(16, 5)[rank::RANKS]
    for _ in range(4):
        noisy = own + 0.1 * torch.randn(own.shape)
        loss = (model(noisy) - own).square().mean()
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
    print(rank, loss.item())
    distributed.destroy_process_group()


if __name__ == "__main__":
    set_seed(21)
    first = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 5))
    with tempfile.TemporaryDirectory() as folder:
        arguments = (first.state_dict(), str(Path(folder, "meeting")))
        multiprocessing.spawn(train, args=arguments, nprocs=RANKS)
