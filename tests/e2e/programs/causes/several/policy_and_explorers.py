"""Two processes explore independently with a policy that the program passes to them, and print what they collected."""

import multiprocessing
import random

import torch
from torch import nn


def explore(name: str, weights: list[list[float]]) -> None:
    torch.set_num_threads(1)
    policy = torch.tensor(weights)
    state, collected = torch.full((4,), 0.5), torch.zeros(())
    for _ in range(6):
        push = torch.tensor([random.uniform(-0.1, 0.1) for _ in range(4)])
        state = torch.tanh(policy @ state + push)
        collected = collected + state.sum()
    print(name, collected.item())


if __name__ == "__main__":
    torch.set_num_threads(1)
    layer = nn.Linear(4, 4, bias=False)
    context = multiprocessing.get_context("spawn")
    for name in ("north", "south"):
        explorer = context.Process(target=explore, args=(name, layer.weight.tolist()), name=name)
        explorer.start()
        explorer.join()
