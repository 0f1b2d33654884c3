"""Two ranks train replicas for four steps on batches from a sampler.

torchrun --nproc-per-node 2 data_parallel.py HOW [STEP]
"""

import sys

import torch
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HOW = sys.argv[1]
AT = int(sys.argv[2]) if len(sys.argv) > 2 else 2
"""The step at which some faults occur."""


def train(rank: int) -> None:
    """Run one rank."""
    torch.manual_seed(0)
    samples = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    if HOW == "deep":
        net = nn.Sequential(net, *(nn.Linear(1, 1) for _ in range(4)))
    net = net if HOW == "apart" else DistributedDataParallel(net)
    parameters = list(net.parameters())
    adam = torch.optim.Adam
    is_sharded = HOW == "sharded optimizer"
    optimizer = ZeroRedundancyOptimizer(parameters, adam, lr=0.01) if is_sharded else adam(parameters, lr=0.01)
    sampler = None if HOW == "batches" else DistributedSampler(samples, shuffle=True)
    loader = iter(DataLoader(samples, batch_size=4, sampler=sampler))
    for step in range(4):
        inputs, targets = next(loader)  # SITE batches
        optimizer.zero_grad()
        (net(inputs) - targets).square().mean().backward()
        if HOW == "gradient" and step == AT and rank == 1:
            parameters[0].grad.mul_(1.5)  # SITE gradient
        if HOW == "clipped" and step == 3 and rank == 0:
            nn.utils.clip_grad_norm_(parameters, 1e-3)  # SITE clipped
        optimizer.step()  # SITE rate
        if HOW == "rate" and step == 1 and rank == 1:
            optimizer.param_groups[0]["lr"] = 0.02
        if HOW in ("weight", "row", "deep") and step == AT and rank == 1:
            with torch.no_grad():
                if HOW in ("weight", "deep"):
                    parameters[0].add_(1e-3)  # SITE weight
                else:
                    parameters[0][0].add_(1e-3)  # SITE row
        if HOW == "evaluated":
            with torch.no_grad():
                for evaluated, _ in DataLoader(samples, batch_size=24):
                    net(evaluated)


distributed.init_process_group("gloo")
train(distributed.get_rank())
distributed.barrier()
distributed.destroy_process_group()
