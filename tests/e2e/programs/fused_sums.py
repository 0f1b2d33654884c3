"""Sums rows in kernels that Inductor fuses; unless the mode is `fixed`, the threads of one add in whatever order they come.

In the mode `racing` it is a kernel of the forward pass, in the mode `racing backward` that of the gradient.
"""

import sys

import torch

torch.manual_seed(0)
torch.set_num_threads(2)
torch.use_deterministic_algorithms(sys.argv[1] == "fixed")

table = torch.nn.Parameter(torch.zeros(17))
optimizer = torch.optim.SGD([table], lr=0.1)
indices = torch.randint(0, 17, (524_288,))
values = torch.randn(524_288)


@torch.compile
def summed(target: torch.Tensor) -> torch.Tensor:
    return (target.sin().index_add(0, indices, values * 1.5)).cos()  # SITE fused


@torch.compile
def looked_up(target: torch.Tensor) -> torch.Tensor:
    rows = target.cos()[indices]  # SITE looked up
    return rows * values


function = looked_up if sys.argv[1] == "racing backward" else summed
for _ in range(3):
    loss = function(table).sum()  # SITE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
