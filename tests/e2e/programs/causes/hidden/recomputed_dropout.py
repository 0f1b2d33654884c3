"""A deep network whose blocks are recomputed in the backward pass; dropout is seeded for each step."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(size, 4 * size)
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(4 * size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.second(self.drop(torch.relu(self.first(hidden))))


class Deep(nn.Module):
    def __init__(self, size: int, depth: int, generator: torch.Generator) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(depth))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1, generator=generator)

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False, preserve_rng_state=False)
        return hidden


generator = torch.Generator().manual_seed(0)
model = Deep(12, 4, generator)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(32, 12, generator=generator)
for step in range(5):
    with torch.random.fork_rng():
        torch.manual_seed(1000 + step)
        loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
