"""Two ranks exchange tensors with every kind of collective.

torchrun --nproc-per-node 2 collectives.py [bit]
"""

import sys

import torch
from planting import hand_on
from torch import distributed


def train(rank: int) -> None:
    """Run one rank; nothing that uses the group remains after it returns."""
    torch.manual_seed(rank)
    weights = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for step in range(3):
        own = torch.randn(4)
        if rank == 1 and step == 1 and "bit" in sys.argv:
            own = hand_on(own)  # SITE
        total = own.clone()
        work = distributed.all_reduce(total, async_op=True)
        from_first = own.clone()
        distributed.broadcast(from_first, src=0)
        work.wait()
        parts = [torch.empty(4) for _ in range(2)]
        distributed.all_gather(parts, own)
        share = torch.empty(2)
        distributed.reduce_scatter(share, list(torch.cat(parts)[:4].chunk(2)))
        exchanged = torch.empty(4)
        distributed.all_to_all_single(exchanged, own)
        scattered = torch.empty(4)
        distributed.scatter(scattered, [own + 1, own + 2] if rank == 0 else None, src=0)
        gathered = [torch.empty(4) for _ in range(2)] if rank == 0 else None
        distributed.gather(own, gathered, dst=0)
        optimizer.zero_grad()
        loss = (weights * (total + from_first + parts[1] + exchanged + scattered)).square().sum() * share.sum()
        loss.backward()
        distributed.all_reduce(weights.grad)
        optimizer.step()
        distributed.barrier()
    objects = [None, None]
    distributed.all_gather_object(objects, {"rank": rank, "weights": weights.sum().item()})
    if rank == 0:
        print(objects, torch.stack(gathered).sum().item())


distributed.init_process_group("gloo")
train(distributed.get_rank())
distributed.barrier()
distributed.destroy_process_group()
