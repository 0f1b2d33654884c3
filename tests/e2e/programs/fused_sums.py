"""Sums rows in a kernel that Inductor fuses; in the mode `racing`, its threads add in whatever order they come."""

import sys

import torch

torch.manual_seed(0)
torch.set_num_threads(2)
torch.use_deterministic_algorithms(sys.argv[1] != "racing")

table = torch.nn.Parameter(torch.zeros(17))
optimizer = torch.optim.SGD([table], lr=0.1)
indices = torch.randint(0, 17, (524_288,))
values = torch.randn(524_288)


@torch.compile
def summed(target: torch.Tensor) -> torch.Tensor:
    return (target.sin().index_add(0, indices, values * 1.5)).cos()  # SITE fused


for _ in range(3):
    loss = summed(table).sum()  # SITE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
