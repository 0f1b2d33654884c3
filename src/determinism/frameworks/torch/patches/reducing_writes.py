"""Writes that reduce what goes to one place: `scatter_reduce`, `index_reduce`, and `scatter` with `reduce=`.

Stock kernels for GPUs reduce with atomics. In deterministic mode those of `scatter_reduce` with `sum` and `mean` sort, and the others refuse.
"""

from __future__ import annotations

from typing import Any

import torch

from determinism.frameworks.torch.patches.accumulating import Reduction, accumulate_rows, in_bounds
from determinism.frameworks.torch.patches.indexed_writes import scatter, scatter_fits, writable
from determinism.frameworks.torch.patches.patch import Patch

_SCATTERED = ("sum", "prod", "mean", "amax", "amin")
_BY_INDEX = ("prod", "mean", "amax", "amin")
_OLD_NAMES = {"add": "sum", "multiply": "prod"}
"""What `scatter` calls the reductions."""


def _reducible(target: torch.Tensor, source: torch.Tensor) -> bool:
    return (
        target.dtype == source.dtype
        and not target.is_complex()
        and target.layout == torch.strided
        and not target.is_quantized
    )


def scatter_reduce(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Reduce values into the places that an index names along one dimension."""
    scatter(target, dim, index, source, Reduction(reduce, include_self))
    return target


def _scatter_reduce_supports(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> bool:
    if reduce not in _SCATTERED or (target.dtype == torch.bool and reduce in ("sum", "mean")):
        return False
    return _reducible(target, source) and scatter_fits(target, dim, index, source)


def scatter_with(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, reduce: str
) -> torch.Tensor:
    """`scatter` with `reduce='add'` or `'multiply'`."""
    scatter(target, dim, index, source, Reduction(_OLD_NAMES[reduce]))
    return target


def _scatter_with_supports(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, reduce: str
) -> bool:
    return (
        reduce in _OLD_NAMES
        and target.dtype != torch.bool
        and _reducible(target, source)
        and scatter_fits(target, dim, index, source)
    )


def index_reduce(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Reduce rows of a source into the rows that an index names."""
    dim %= target.dim()
    rows, values = target.movedim(dim, 0), source.movedim(dim, 0)
    accumulate_rows(rows, index.to(torch.int64), [target.shape[dim]], values, Reduction(reduce, include_self))
    return target


def _index_reduce_supports(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> bool:
    if reduce not in _BY_INDEX or not _reducible(target, source) or target.dtype == torch.bool:
        return False
    if target.dim() == 0 or not -target.dim() <= dim < target.dim() or source.dim() != target.dim():
        return False
    dim %= target.dim()
    shape = list(target.shape)
    shape[dim] = index.numel()
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64) or list(source.shape) != shape:
        return False
    if index.device != target.device or source.device != target.device or target.numel() == 0:
        return False
    if index.device.type == "cpu" and bool((index < 0).any()):
        return False
    return in_bounds(index, target.shape[dim]) and writable(target, index, source)


def _tensors(device: Any) -> tuple[Any, ...]:
    index = torch.zeros(2, dtype=torch.int64, device=device)
    return torch.ones(3, device=device), 0, index, torch.ones(2, device=device)


def _example(device: Any) -> tuple[Any, ...]:
    return *_tensors(device), "prod"


PATCHES = (
    Patch(
        identity="scatter-reduce",
        what="scatter_reduce",
        overloads=("scatter_reduce_.two", "scatter_reduce.two", "scatter_reduce.two_out"),
        run=scatter_reduce,
        supports=_scatter_reduce_supports,
        example=_example,
        in_place=True,
    ),
    Patch(
        identity="scatter-with-reduce",
        what="scatter with reduce=",
        overloads=("scatter_.reduce", "scatter.reduce", "scatter.reduce_out"),
        run=scatter_with,
        supports=_scatter_with_supports,
        example=_tensors,
        named={"reduce": "add"},
        probed=False,
        in_place=True,
    ),
    Patch(
        identity="index-reduce",
        what="index_reduce",
        overloads=("index_reduce_", "index_reduce", "index_reduce.out"),
        run=index_reduce,
        supports=_index_reduce_supports,
        example=_example,
        probed=False,
        in_place=True,
    ),
)
