"""The maps along one axis of interpolation with antialiasing: filters that grow with the factor by which is scaled down."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from determinism.frameworks.torch.patches.axis_maps import scale_of
from determinism.frameworks.torch.patches.taps import Shares, tabulated

_CUBIC = -0.5


def _triangle(x: torch.Tensor) -> torch.Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: torch.Tensor) -> torch.Tensor:
    x = x.abs()
    near = ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * _CUBIC
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _lanczos(x: torch.Tensor) -> torch.Tensor:
    turns = x * math.pi
    lobes = torch.sin(turns) * torch.sin(turns / 3) * 3 / (turns * turns)
    return torch.where(x == 0, torch.ones_like(x), torch.where(x.abs() < 3, lobes, torch.zeros_like(x)))


_FILTERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "linear": (_triangle, 2),
    "cubic": (_cubic, 4),
    "lanczos": (_lanczos, 6),
}
"""Per name the filter, and how many inputs wide it is where nothing is scaled down."""


@tabulated
def antialiased(
    name: str, input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> tuple[Shares, int]:
    """Each output is a weighted mean over a window; the weights are those of the filter, divided by their sum."""
    weigh, width = _FILTERS[name]
    step = scale_of(input_size, output_size, align_corners, scale, dtype)
    support = (width / 2) * step if step >= 1 else torch.tensor(width / 2, dtype=dtype)
    narrow = 1 / step if step >= 1 else torch.ones((), dtype=dtype)
    center = step * (torch.arange(output_size).to(dtype) + 0.5)
    starts = (center - support + 0.5).to(torch.int64).clamp(min=0)
    ends = (center + support + 0.5).to(torch.int64).clamp(max=input_size)
    lengths = (ends - starts).clamp(min=0)
    offsets = torch.arange(int(lengths.max()) if output_size else 0)
    inside = offsets < lengths.unsqueeze(1)
    distance = (offsets + (starts.to(dtype) - center).unsqueeze(1) + 0.5) * narrow
    weights = weigh(distance) * inside
    total = weights.sum(1, keepdim=True)
    weights = torch.where(total != 0, weights / total, weights)
    outputs = torch.arange(output_size).unsqueeze(1).expand_as(inside)
    inputs = starts.unsqueeze(1) + offsets
    return Shares(outputs[inside], inputs[inside], weights[inside]), input_size
