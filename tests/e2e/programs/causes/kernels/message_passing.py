"""Ranks the pages of a graph by passing messages along its links, and learns how much each link counts."""

import torch
from torch import Tensor, nn

PAGES, LINKS = 512, 131_072


class Propagation(nn.Module):
    """Each page sums the messages of the pages that link to it."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.randn(LINKS) / 10)

    def forward(self, ranks: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        sent = ranks.index_select(0, sources) * self.strength.sigmoid()
        received = torch.zeros(PAGES)
        received.index_put_((targets,), sent, accumulate=True)
        return received / received.sum()


def main() -> None:
    torch.manual_seed(8)
    torch.set_num_threads(2)
    sources, targets = torch.randint(PAGES, (2, LINKS))
    layers = nn.ModuleList([Propagation(), Propagation()])
    optimizer = torch.optim.SGD(layers.parameters(), lr=10.0)
    wanted = torch.softmax(torch.randn(PAGES), 0)
    for step in range(6):
        ranks = torch.full((PAGES,), 1 / PAGES)
        for layer in layers:
            ranks = layer(ranks, sources, targets)
        loss = (ranks - wanted).abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


main()
