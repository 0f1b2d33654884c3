"""Each child writes one number into memory that it shares with the parent, which sums them.

    python shared_results.py [seed] [told]

With `seed`, the second child uses a different seed in every second run; with `told`, children also print their numbers.
"""

import sys

import torch
from planting import passed_before
from torch import multiprocessing

CHILDREN = 3


def find(number: int, results: torch.Tensor, seed: int) -> None:
    """Compute a number, in a child process."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    found = torch.randn(100).square().mean()  # SITE seed
    if "told" in sys.argv:
        print(found.item())
    results[number] = found


if __name__ == "__main__":
    torch.set_num_threads(1)
    seeds = list(range(CHILDREN))
    if "seed" in sys.argv and passed_before() % 2:
        seeds[1] = 17
    results = torch.zeros(CHILDREN).share_memory_()
    context = multiprocessing.get_context("fork")
    for number, seed in enumerate(seeds):
        child = context.Process(target=find, args=(number, results, seed), name=f"finder-{number}")
        child.start()
        child.join()
    print(results.sum().item())
