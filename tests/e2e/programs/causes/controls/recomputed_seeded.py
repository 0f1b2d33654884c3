"""Recomputes blocks with dropout in the backward pass, without restoring the generator, but seeded."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def block(size: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, size), nn.Dropout(0.3), nn.GELU())


torch.manual_seed(8)
blocks = nn.ModuleList(block(16) for _ in range(4))
head = nn.Linear(16, 2)
optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], lr=0.1)
inputs, labels = torch.randn(40, 16), torch.arange(40) % 2
for _ in range(5):
    hidden = inputs
    for part in blocks:
        hidden = checkpoint(part, hidden, use_reentrant=False, preserve_rng_state=False)
    loss = nn.functional.cross_entropy(head(hidden), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
