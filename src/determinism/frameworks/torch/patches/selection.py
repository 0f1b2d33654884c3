"""`median`, `nanmedian` and `kthvalue` along a dimension: of several equal elements the first in a stable order is taken.

Their values are unique; the index of one that comes more than once is what varies. A stable sort gives both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.tensors import plain

_ORDERED = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
Selected = tuple[torch.Tensor, torch.Tensor]


def _at(given: torch.Tensor, dim: int, ranks: Callable[[torch.Tensor], torch.Tensor], keepdim: bool) -> Selected:
    """The elements of some rank, and where they stand; `ranks` gets how many along the dimension are NaN."""
    if given.dim() == 0:
        return given.clone(), torch.zeros((), dtype=torch.int64, device=given.device)
    dim %= given.dim()
    values, order = torch.sort(given, dim=dim, stable=True)
    rank = ranks(given.isnan().sum(dim, keepdim=True))
    chosen = values.gather(dim, rank), order.gather(dim, rank)
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


def median(given: torch.Tensor, dim: int, keepdim: bool = False) -> Selected:
    """The lower median; the first NaN, where there is one."""
    size = given.shape[dim] if given.dim() else 1

    def rank(missing: torch.Tensor) -> torch.Tensor:
        return torch.where(missing > 0, size - missing, torch.full_like(missing, (size - 1) // 2))

    return _at(given, dim, rank, keepdim)


def nanmedian(given: torch.Tensor, dim: int, keepdim: bool = False) -> Selected:
    """The lower median of what is not NaN; NaN where nothing else is there."""
    size = given.shape[dim] if given.dim() else 1
    return _at(given, dim, lambda missing: ((size - missing - 1) // 2).clamp(min=0), keepdim)


def kthvalue(given: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Selected:
    """The k-th smallest element; NaN counts as larger than any number."""
    return _at(given, dim, lambda missing: torch.full_like(missing, k - 1), keepdim)


def _along(given: torch.Tensor, dim: int) -> bool:
    axes = max(given.dim(), 1)
    return plain(given, dtypes=_ORDERED) and -axes <= dim < axes and (given.dim() == 0 or given.shape[dim] > 0)


def _median_supports(given: torch.Tensor, dim: int, keepdim: bool = False) -> bool:
    return _along(given, dim)


def _kthvalue_supports(given: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> bool:
    return _along(given, dim) and 1 <= k <= (given.shape[dim] if given.dim() else 1)


def _example(*parameters: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda device: (torch.arange(3.0, device=device), *parameters)


def _patch(name: str, overload: str, run: Any, supports: Any, *parameters: int) -> Patch:
    return Patch(
        identity=name,
        what=f"{name} with indices",
        # The functional overload has no kernel of its own on any device: it calls this one.
        overloads=(overload,),
        run=run,
        supports=supports,
        example=_example(*parameters),
    )


PATCHES = (
    _patch("median", "median.dim_values", median, _median_supports, 0),
    _patch("nanmedian", "nanmedian.dim_values", nanmedian, _median_supports, 0),
    _patch("kthvalue", "kthvalue.values", kthvalue, _kthvalue_supports, 1),
)
