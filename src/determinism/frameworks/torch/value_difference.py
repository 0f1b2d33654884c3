"""How far two tensors of equal shape and dtype are apart."""

from __future__ import annotations

import math
from typing import Any

import torch

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(first: torch.Tensor, second: torch.Tensor) -> dict[str, Any]:
    """Compare two tensors bit by bit.

    Returns:
        `elements_different`, and for real floats `max_ulp` (how many representable numbers lie between the two,
        counted through zero; None where an element is no number) and `max_abs` (None where it is not finite).
    """
    nothing = {"elements_different": None, "max_ulp": None, "max_abs": None}
    if first.shape != second.shape or first.dtype != second.dtype or first.layout is not torch.strided:
        return nothing
    first, second = first.detach().contiguous(), second.detach().contiguous()
    if first.is_complex():
        first, second = torch.view_as_real(first), torch.view_as_real(second)
    kind = _BITS.get(first.element_size())
    if kind is None or first.is_quantized:
        return nothing
    bits = (first.view(kind), second.view(kind))
    different = bits[0] != bits[1]
    count = int(different.sum())
    if not count or not first.is_floating_point():
        return {"elements_different": count, "max_ulp": None, "max_abs": None}
    left, right = first[different].double(), second[different].double()
    apart = float((left - right).abs().max())
    ordered = [_ordered(part[different]) for part in bits]
    ulp = None
    if bool(torch.isfinite(left).all()) and bool(torch.isfinite(right).all()):
        ulp = max(abs(a - b) for a, b in zip(*(part.tolist() for part in ordered), strict=True))
    return {"elements_different": count, "max_ulp": ulp, "max_abs": apart if math.isfinite(apart) else None}


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Map the bits of floats to integers that lie in the order of the floats."""
    lowest = torch.iinfo(bits.dtype).min
    return torch.where(bits < 0, lowest - bits.to(torch.int64), bits.to(torch.int64))
