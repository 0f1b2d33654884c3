"""A child prepares a file of tensors; the parent loads it and trains on it, part by part.

    python prepared_file.py [seed]

With `seed`, the child uses a different seed in every second run.
"""

import sys

import torch
from planting import passed_before
from torch import multiprocessing, nn


def prepare(seed: int) -> None:
    """Prepare the file, in the child process."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    inputs = torch.randn(64, 8)  # SITE seed
    torch.save({"inputs": inputs, "targets": [torch.arange(64.0)]}, "prepared.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Linear(8, 1)
    seed = 17 if "seed" in sys.argv and passed_before() % 2 else 1
    context = multiprocessing.get_context("fork")
    child = context.Process(target=prepare, args=(seed,), name="preparing")
    child.start()
    child.join()
    prepared = torch.load("prepared.pt")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    for start in range(0, 64, 16):
        inputs, targets = prepared["inputs"][start : start + 16], prepared["targets"][0][start : start + 16]
        loss = (net(inputs).squeeze(1) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
