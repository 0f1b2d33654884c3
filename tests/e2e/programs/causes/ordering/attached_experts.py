"""A mixture of experts, whose outputs are joined in the order of a frozen set of modules."""

import torch
from torch import Tensor, nn


class Expert(nn.Module):
    """One of several small networks."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4)
        self.scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.layer(inputs)) * self.scale


class Mixture(nn.Module):
    """Holds the experts that are currently attached."""

    def __init__(self, experts: list[Expert]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.attached = frozenset(experts)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([expert(inputs) for expert in self.attached], dim=1)


def main() -> None:
    torch.manual_seed(8)
    experts = [Expert(0.5 + number) for number in range(7)]
    mixture = Mixture(experts)
    head = nn.Linear(28, 1)
    optimizer = torch.optim.SGD([*mixture.parameters(), *head.parameters()], lr=0.05)
    for _ in range(3):
        loss = (head(mixture(torch.randn(6, 12))) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
