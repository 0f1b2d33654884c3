"""Two ranks train in shards, with `fully_shard`.

torchrun --nproc-per-node 2 sharded.py HOW
"""

import sys

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

HOW = sys.argv[1]


class Part(nn.Module):
    """A layer that one rank may change after it is gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute with the gathered weights."""
        if HOW == "one rank" and distributed.get_rank() == 1:
            with torch.no_grad():
                self.layer.weight.clamp_(max=0.1)
        return torch.tanh(self.layer(hidden))  # SITE layer


def train(rank: int) -> None:
    """Train in a rank."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    net = nn.Sequential(Part(), Part(), nn.Linear(5, 3))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if HOW == "mixed" else MixedPrecisionPolicy()
    for part in (*net, net):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    if HOW == "stale":
        net.set_reshard_after_backward(False)
        net.set_reshard_after_forward(False)
    torch.manual_seed(1 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(8, 5)).square().mean().backward()
        optimizer.step()


distributed.init_process_group("gloo")
train(distributed.get_rank())
distributed.barrier()
distributed.destroy_process_group()
