"""Fits splines to many noisy curves by least squares, and averages the solutions."""

import torch
from torch import Tensor


def basis(times: Tensor, knots: int) -> Tensor:
    centres = torch.linspace(0, 1, knots)
    return torch.exp(-((times[:, None] - centres) ** 2) * knots**2 / 2)


def fit(times: Tensor, values: Tensor) -> Tensor:
    return torch.linalg.lstsq(basis(times, 13), values).solution


torch.manual_seed(17)
torch.set_num_threads(1)
curves = []
for number in range(30):
    times = torch.rand(101 + number).sort().values
    values = torch.sin(6 * times + number)[:, None] + 0.05 * torch.randn(101 + number, 1)
    curves.append(fit(times, values))
mean = torch.stack(curves).mean(0)
print(mean.flatten().tolist())
