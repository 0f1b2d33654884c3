"""Adds many values at a few places, with two threads but in the fixed order of the deterministic algorithms."""

import torch
from torch import nn

torch.manual_seed(11)
torch.set_num_threads(2)
torch.use_deterministic_algorithms(True)
table = nn.Parameter(torch.randn(50))
places = torch.randint(50, (150_000,))
values = torch.randn(150_000)
optimizer = torch.optim.SGD([table], lr=1e-6)
for _ in range(5):
    sums = torch.zeros(50).index_put_((places,), values * table[places], accumulate=True)
    loss = sums.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
