"""A layer with a method that initialises it."""

import math

import torch
from torch import Tensor, nn


class Bilinear(nn.Module):
    """Scores pairs of vectors."""

    def __init__(self, size: int, scores: int) -> None:
        super().__init__()
        self.register_parameter("core", nn.Parameter(torch.empty((scores, size, size))))
        self.bias = nn.Parameter(torch.zeros(scores))

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.core, -1 / math.sqrt(self.core.shape[1]), 1 / math.sqrt(self.core.shape[1]))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("bi,sij,bj->bs", left, self.core, right) + self.bias


def main() -> None:
    torch.manual_seed(2)
    encode = nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 16))
    score = Bilinear(16, 3)
    optimizer = torch.optim.Adam([*encode.parameters(), *score.parameters()], lr=0.01)
    for _ in range(3):
        left, right = encode(torch.randn(10, 300)), encode(torch.randn(10, 300))
        loss = nn.functional.cross_entropy(score(left, right), torch.randint(3, (10,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
