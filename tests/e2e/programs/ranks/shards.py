"""Two ranks train one network sharded with `fully_shard`, and compute with distributed tensors.

torchrun --nproc-per-node 2 shards.py [bit]
"""

import sys

import torch
from planting import hand_on
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor


def train(rank: int) -> None:
    """Run one rank; nothing that uses the group remains after it returns."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    for part in (net[0], net[2], net):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters())
    torch.manual_seed(1 + rank)
    for step in range(2):
        inputs = torch.randn(8, 4)
        if rank == 1 and step == 1 and "bit" in sys.argv:
            inputs = hand_on(inputs)  # SITE
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()
    table = distribute_tensor(torch.arange(16.0).view(4, 4), mesh, [Shard(0)])
    total = (table @ table.T).sum().full_tensor()
    weights = [parameter.full_tensor().sum().item() for parameter in net.parameters()]
    if rank == 0:
        print(total.item(), weights)


distributed.init_process_group("gloo")
train(distributed.get_rank())
distributed.barrier()
distributed.destroy_process_group()
