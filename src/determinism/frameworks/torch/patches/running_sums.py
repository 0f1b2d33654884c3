"""`cumsum` of a single row: in blocks, each summed by one group of threads, and each block's start added at the end.

Stock kernels for GPUs sum each of several rows in one order. A single row is cut into parts, and how sums of parts are passed on depends
on timing, unless deterministic mode asks for another kernel. So a single row is made into several.
"""

from __future__ import annotations

from typing import Any

import torch

from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.taps import accumulation_dtype
from determinism.frameworks.torch.patches.tensors import COMPLEX, FLOATING

BLOCK = 2048


def cumsum(given: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Running sums of the only row that there is."""
    kept = dtype or given.dtype
    return _summed(given.reshape(-1).to(accumulation_dtype(kept))).to(kept).view(given.shape)


def _summed(row: torch.Tensor) -> torch.Tensor:
    blocks = max(2, -(-len(row) // BLOCK))  # a second one, if only of zeros, makes them rows
    padded = row.new_zeros(blocks * BLOCK)
    padded[: len(row)] = row
    sums = torch.cumsum(padded.view(blocks, BLOCK), 1)
    if len(row) > BLOCK:
        ends = _summed(sums[:, -1].clone())
        sums[1:] += ends[:-1].unsqueeze(1)
    return sums.view(-1)[: len(row)].clone()


def _supports(given: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> bool:
    return (
        (dtype or given.dtype) in FLOATING | COMPLEX
        and given.layout == torch.strided
        and given.dim() > 0
        and -given.dim() <= dim < given.dim()
        and given.shape[dim] == given.numel() > 1
    )


def _example(device: Any) -> tuple[Any, ...]:
    return torch.ones(3, device=device), 0


PATCHES = (
    Patch(
        identity="cumsum",
        what="cumsum of one row",
        overloads=("cumsum", "cumsum_", "cumsum.out"),
        run=cumsum,
        supports=_supports,
        example=_example,
    ),
)
