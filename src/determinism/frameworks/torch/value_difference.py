"""How far two tensors of equal shape and dtype are apart."""

from __future__ import annotations

import math
from typing import Any

import torch

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


MOST_EXAMPLES = 3


def difference(first: torch.Tensor, second: torch.Tensor) -> dict[str, Any]:
    """Compare two tensors bit by bit.

    Returns:
        `elements_different`; for real floats `max_ulp` (how many representable numbers lie between the two, counted
        through zero; None where an element is no number), `max_abs` (None where it is not finite) and `max_relative` (the
        same as a part of the largest element; None where one that differs is no number); `examples`, the first elements that differ, each with `index`, `first` and `second` (texts that tell all values apart); and `extent`, per
        dimension the lowest and the highest index at which there are differences.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("elements_different", "max_ulp", "max_abs", "max_relative", "examples", "extent")
    )
    if first.shape != second.shape or first.dtype != second.dtype or first.layout is not torch.strided:
        return found
    first, second = first.detach().contiguous(), second.detach().contiguous()
    parts = [torch.view_as_real(one) if one.is_complex() else one for one in (first, second)]
    kind = _BITS.get(parts[0].element_size())
    if kind is None or first.is_quantized:
        return found
    parts_differ = parts[0].view(kind) != parts[1].view(kind)
    different = parts_differ.any(dim=-1) if first.is_complex() else parts_differ
    count = int(different.sum())
    found["elements_different"] = count
    if not count:
        return found
    places = different.nonzero()
    found["examples"] = [
        {"index": place, "first": value_text(first[tuple(place)]), "second": value_text(second[tuple(place)])}
        for place in places[:MOST_EXAMPLES].tolist()
    ]
    if first.dim():
        found["extent"] = [list(ends) for ends in zip(*(e.tolist() for e in places.aminmax(dim=0)), strict=True)]
    if parts[0].is_floating_point():
        found["max_ulp"], found["max_abs"] = _distance(*(part[parts_differ] for part in parts))
        largest = max(
            float(part[part.isfinite()].double().abs().max()) if part.isfinite().any() else 0.0 for part in parts
        )
        if found["max_ulp"] is not None and found["max_abs"] is not None and largest:
            found["max_relative"] = found["max_abs"] / largest
    return found


def value_text(element: torch.Tensor) -> str:
    """One element as a text that differs for values that differ."""
    value = element.item()
    digits = {8: ".17g", 4: ".9g"}.get(element.element_size(), ".5g")
    return format(value, digits) if isinstance(value, float) else str(value)


def _distance(first: torch.Tensor, second: torch.Tensor) -> tuple[int | None, float | None]:
    apart = float((first.double() - second.double()).abs().max())
    if not bool(torch.isfinite(first).all() and torch.isfinite(second).all()):
        return None, apart if math.isfinite(apart) else None
    ordered = [_ordered(part.view(_BITS[part.element_size()])).tolist() for part in (first, second)]
    return max(abs(a - b) for a, b in zip(*ordered, strict=True)), apart if math.isfinite(apart) else None


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Map the bits of floats to integers that lie in the order of the floats."""
    lowest = torch.iinfo(bits.dtype).min
    return torch.where(bits < 0, lowest - bits.to(torch.int64), bits.to(torch.int64))
