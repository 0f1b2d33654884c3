"""Counts, running sums and order statistics: `histc`, `bincount` with weights, `cumsum` of a single row, and `median`, `nanmedian` and `kthvalue`.

The values of order statistics are unique; only the index of a value that occurs more than once varies. A stable sort gives both, and takes the
first of several equal elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.patches.ordered_sums import COMPLEX, FLOATING, accumulation_dtype, plain, sum_by_key
from determinism.frameworks.torch.patches.patch import Patch


def histc(given: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Count elements per bin. The counts are integers, which are the same in any order, and are then cast."""
    low, high = _range(given, min, max)
    values = given.reshape(-1)
    inside = (values >= low) & (values <= high)
    steps = (values - low) * bins / (high - low)
    numbers = torch.where(inside, steps, torch.zeros_like(steps)).to(torch.int64).clamp(max=bins - 1)
    numbers = torch.where(inside, numbers, torch.full_like(numbers, bins))
    return torch.bincount(numbers, minlength=bins + 1)[:bins].to(given.dtype)


def _range(given: torch.Tensor, low: float, high: float) -> tuple[float, float]:
    if low == high and given.numel() > 0:
        low, high = given.min().item(), given.max().item()
    return (low - 1, high + 1) if low == high else (low, high)


def _histc_supports(given: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> bool:
    if not plain(given) or bins <= 0 or isinstance(min, complex) or isinstance(max, complex) or min > max:
        return False
    return all(math.isfinite(bound) for bound in _range(given, min, max))


def bincount(given: torch.Tensor, weights: torch.Tensor, minlength: int = 0) -> torch.Tensor:
    """Sum up the weights of each number."""
    if given.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=given.device)
    values = weights if weights.dtype == torch.float32 else weights.to(torch.float64)
    size = max(int(given.max()) + 1, minlength)
    return sum_by_key(given.to(torch.int64), values.unsqueeze(1), size).squeeze(1)


def _bincount_supports(given: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> bool:
    if weights is None or given.dim() != 1 or weights.shape != given.shape or weights.device != given.device:
        return False
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool or weights.is_complex():
        return False
    return minlength >= 0 and (given.numel() == 0 or int(given.min()) >= 0)


# `cumsum` of a single row: in blocks, each summed by one group of threads, and each block's start added at the end. If there are several rows,
# stock GPU kernels sum each in a fixed order. A single row is cut into parts, and how their sums are passed on depends on timing, unless
# deterministic mode selects another kernel. So a single row is made into several.

BLOCK = 2048


def cumsum(given: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Compute the running sums of a single row."""
    kept = dtype or given.dtype
    return _summed(given.reshape(-1).to(accumulation_dtype(kept))).to(kept).view(given.shape)


def _summed(row: torch.Tensor) -> torch.Tensor:
    blocks = max(2, -(-len(row) // BLOCK))  # at least two, the second maybe all zeros, so that there are several rows
    padded = row.new_zeros(blocks * BLOCK)
    padded[: len(row)] = row
    sums = torch.cumsum(padded.view(blocks, BLOCK), 1)
    if len(row) > BLOCK:
        ends = _summed(sums[:, -1].clone())
        sums[1:] += ends[:-1].unsqueeze(1)
    return sums.view(-1)[: len(row)].clone()


def _cumsum_supports(given: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> bool:
    return (
        (dtype or given.dtype) in FLOATING | COMPLEX
        and given.layout == torch.strided
        and given.dim() > 0
        and -given.dim() <= dim < given.dim()
        and given.shape[dim] == given.numel() > 1
    )


_ORDERED = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
Selected = tuple[torch.Tensor, torch.Tensor]


def _at(given: torch.Tensor, dim: int, ranks: Callable[[torch.Tensor], torch.Tensor], keepdim: bool) -> Selected:
    """Return the elements of some rank and their indices; `ranks` gets the number of NaNs along the dimension."""
    if given.dim() == 0:
        return given.clone(), torch.zeros((), dtype=torch.int64, device=given.device)
    dim %= given.dim()
    values, order = torch.sort(given, dim=dim, stable=True)
    rank = ranks(given.isnan().sum(dim, keepdim=True))
    chosen = values.gather(dim, rank), order.gather(dim, rank)
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


def median(given: torch.Tensor, dim: int, keepdim: bool = False) -> Selected:
    """Return the lower median, or the first NaN if there is one."""
    size = given.shape[dim] if given.dim() else 1

    def rank(missing: torch.Tensor) -> torch.Tensor:
        return torch.where(missing > 0, size - missing, torch.full_like(missing, (size - 1) // 2))

    return _at(given, dim, rank, keepdim)


def nanmedian(given: torch.Tensor, dim: int, keepdim: bool = False) -> Selected:
    """Return the lower median, ignoring NaNs; NaN if there is nothing else."""
    size = given.shape[dim] if given.dim() else 1
    return _at(given, dim, lambda missing: ((size - missing - 1) // 2).clamp(min=0), keepdim)


def kthvalue(given: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Selected:
    """Return the k-th smallest element; NaN counts as larger than any number."""
    return _at(given, dim, lambda missing: torch.full_like(missing, k - 1), keepdim)


def _holds_along(given: torch.Tensor, dim: int) -> bool:
    axes = max(given.dim(), 1)
    return plain(given, dtypes=_ORDERED) and -axes <= dim < axes and (given.dim() == 0 or given.shape[dim] > 0)


def _median_supports(given: torch.Tensor, dim: int, keepdim: bool = False) -> bool:
    return _holds_along(given, dim)


def _kthvalue_supports(given: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> bool:
    return _holds_along(given, dim) and 1 <= k <= (given.shape[dim] if given.dim() else 1)


def _patch(name: str, overload: str, run: Any, supports: Any, *parameters: int) -> Patch:
    return Patch(
        identity=name,
        what=f"{name} with indices",
        # The functional overload has no kernel of its own on any device; it calls this one.
        overloads=(overload,),
        run=run,
        supports=supports,
        example=lambda device: (torch.arange(3.0, device=device), *parameters),
    )


PATCHES = (
    Patch(
        identity="histc",
        what="histc",
        overloads=("histc", "histc.out"),
        run=histc,
        supports=_histc_supports,
        example=lambda device: (torch.arange(4.0, device=device), 2, 0, 3),
    ),
    Patch(
        identity="bincount",
        what="bincount with weights",
        overloads=("bincount",),
        run=bincount,
        supports=_bincount_supports,
        example=lambda device: (torch.zeros(2, dtype=torch.int64, device=device), torch.ones(2, device=device)),
    ),
    Patch(
        identity="cumsum",
        what="cumsum of one row",
        overloads=("cumsum", "cumsum_", "cumsum.out"),
        run=cumsum,
        supports=_cumsum_supports,
        example=lambda device: (torch.ones(3, device=device), 0),
    ),
    _patch("median", "median.dim_values", median, _median_supports, 0),
    _patch("nanmedian", "nanmedian.dim_values", nanmedian, _median_supports, 0),
    _patch("kthvalue", "kthvalue.values", kthvalue, _kthvalue_supports, 1),
)
