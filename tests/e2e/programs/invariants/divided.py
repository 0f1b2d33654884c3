"""Two ranks train parts of one model on the batches of a loader: each computes with its part, or gathers all parts first.

torchrun --nproc-per-node 2 divided.py HOW
"""

import sys

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HOW = sys.argv[1]


def train(rank: int) -> None:
    """Train in a rank."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    samples = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    net: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    if HOW.startswith("gathered"):
        fully_shard(net, mesh=mesh)
    else:
        parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    is_split = HOW in ("gathered", "parts", "parts sent")
    sampler = DistributedSampler(samples) if is_split else None
    loader = iter(DataLoader(samples, batch_size=4, sampler=sampler))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        inputs, targets = next(loader)  # SITE batches
        if HOW == "parts sent":
            distributed.broadcast(inputs, 0)
            distributed.broadcast(targets, 0)
        optimizer.zero_grad()
        (net(inputs) - targets).square().mean().backward()
        optimizer.step()


distributed.init_process_group("gloo")
train(distributed.get_rank())
distributed.barrier()
distributed.destroy_process_group()
