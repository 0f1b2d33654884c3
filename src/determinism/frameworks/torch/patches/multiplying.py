"""`scatter_reduce` with `prod`: the values of one place are multiplied in their order."""

from __future__ import annotations

from typing import Any

import torch

from determinism.frameworks.torch.patches.accumulating import Reduction
from determinism.frameworks.torch.patches.indexed_writes import scatter, scatter_fits
from determinism.frameworks.torch.patches.patch import Patch


def scatter_prod(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Multiply each place that the index names by its values, or put their product there."""
    scatter(target, dim, index, source, Reduction("prod", include_self))
    return target


def _supports(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> bool:
    return (
        reduce == "prod"
        and target.dtype == source.dtype
        and not target.is_complex()
        and target.layout == torch.strided
        and scatter_fits(target, dim, index, source)
    )


def _example(device: Any) -> tuple[Any, ...]:
    index = torch.zeros(2, dtype=torch.int64, device=device)
    return torch.ones(3, device=device), 0, index, torch.ones(2, device=device), "prod"


PATCHES = (
    Patch(
        identity="scatter-reduce-prod",
        what="scatter_reduce prod",
        overloads=("scatter_reduce_.two", "scatter_reduce.two", "scatter_reduce.two_out"),
        run=scatter_prod,
        supports=_supports,
        example=_example,
        in_place=True,
    ),
)
