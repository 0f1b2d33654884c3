"""One of two ranks that are started separately, as on two machines, and rendezvous through a file.

RANK=0 WORLD_SIZE=2 python machines.py FILE [seed]
"""

import os
import sys

import torch
from torch import distributed, nn

distributed.init_process_group("gloo", init_method=f"file://{os.path.abspath(sys.argv[1])}",
                               rank=int(os.environ["RANK"]), world_size=2)  # fmt: skip
rank = distributed.get_rank()
torch.manual_seed(0)
net = nn.Linear(4, 1)
torch.manual_seed(1 + rank)
if rank == 1 and "seed" in sys.argv:
    torch.seed()
for _ in range(3):
    net.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()  # SITE seed
    for parameter in net.parameters():
        distributed.all_reduce(parameter.grad)
        parameter.data -= 0.1 * parameter.grad
print(rank, net.weight.sum().item())
distributed.barrier()
distributed.destroy_process_group()
