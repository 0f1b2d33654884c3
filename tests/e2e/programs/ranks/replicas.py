"""Two ranks train replicas with `DistributedDataParallel`, the last step in two parts.

torchrun --nproc-per-node 2 replicas.py [bit|seed]
"""

import os
import sys

import torch
from planting import hand_on
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int) -> None:
    """Run one rank; nothing that uses the group remains after it returns."""
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(1 + rank)
    if rank == 1 and "seed" in sys.argv:
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    for step in range(3):
        hook = None
        if rank == 1 and step == 1 and "bit" in sys.argv:
            hook = net.module[3].weight.register_hook(lambda gradient: hand_on(gradient))  # SITE bit
        optimizer.zero_grad()
        if step == 2:
            with net.no_sync():
                net(torch.randn(8, 4)).square().mean().backward()
        loss = net(torch.randn(8, 4)).square().mean()  # SITE seed
        loss.backward()
        optimizer.step()
        if hook is not None:
            hook.remove()
    if rank == 0:
        print(loss.item(), [parameter.sum().item() for parameter in net.parameters()])


distributed.init_process_group("gloo")
train(distributed.get_rank())
distributed.barrier()
distributed.destroy_process_group()
