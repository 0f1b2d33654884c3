"""Two ranks sum gradients; rank 0 reads the sum without waiting for it, in every second run long before it is complete.

torchrun --nproc-per-node 2 unawaited.py [hasty]
"""

import sys
import time

import torch
from planting import passed_before
from torch import distributed

SECONDS = 3.0


def train(rank: int) -> None:
    """Run one rank; nothing that uses the group remains after it returns."""
    torch.manual_seed(0)
    weights = torch.ones(4)
    for step in range(3):
        gradient = torch.randn(4)
        distributed.barrier()
        if rank == 1 and step == 1 and "hasty" in sys.argv and passed_before() % 2:
            time.sleep(2 * SECONDS)
        work = distributed.all_reduce(gradient, async_op=True)  # SITE
        if "hasty" in sys.argv and rank == 0:
            time.sleep(SECONDS)
        else:
            work.wait()
        weights = weights - 0.1 * gradient
        work.wait()
    print(weights.tolist())


distributed.init_process_group("gloo")
train(distributed.get_rank())
distributed.barrier()
distributed.destroy_process_group()
