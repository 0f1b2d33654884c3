"""Learns the depth of surfels that many rays hit; rays look up their surfels by advanced indexing."""

import torch
from torch import Tensor, nn


class Surfels(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.depth = nn.Parameter(torch.ones(count))
        self.colour = nn.Parameter(torch.zeros(count))

    def forward(self, hits: Tensor) -> tuple[Tensor, Tensor]:
        return self.depth[hits], self.colour.index_select(0, hits)


def render(depth: Tensor, colour: Tensor) -> Tensor:
    return torch.exp(-depth) * (1 + colour)


torch.manual_seed(22)
torch.set_num_threads(2)
surfels = Surfels(97)
hits = torch.randint(97, (200_000,))
seen = torch.rand(200_000)
optimizer = torch.optim.SGD(surfels.parameters(), lr=0.5)
for _ in range(6):
    loss = (render(*surfels(hits)) - seen).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), surfels.depth.std().item())
