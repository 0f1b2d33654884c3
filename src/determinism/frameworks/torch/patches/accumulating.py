"""Adding to, or multiplying, the places of a tensor that indices name, some of them more than once.

The indices become one number per place; values of one place are reduced in their order, and the result is written once. What is written to a
place more than once, because there is room for more, is the same value each time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from determinism.frameworks.torch.patches.segments import ONE_BY_ONE, distinct_runs, reduce_runs
from determinism.frameworks.torch.patches.taps import accumulation_dtype


@dataclass(frozen=True)
class Reduction:
    """How values of one place become one: `sum`, `prod`, `mean`, `amax` or `amin`; and whether what was there before counts."""

    name: str = "sum"
    include_self: bool = True

    def joined(self, before: torch.Tensor, reduced: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The result, from what was there, the reduction (for a mean, the sum) of the values, and how many they are."""
        if self.include_self:
            join = {"prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}.get(self.name, torch.add)
            reduced, counts = join(before, reduced), counts + 1
        if self.name != "mean":
            return reduced
        rounding = None if reduced.is_floating_point() else "floor"
        return torch.div(reduced, counts.view(-1, *[1] * (reduced.dim() - 1)), rounding_mode=rounding)


SUM = Reduction()


def linear_keys(indices: list[torch.Tensor], sizes: list[int]) -> torch.Tensor:
    """One number per place from an index per dimension; negative ones count from the end."""
    keys: Any = 0
    for index, size in zip(indices, sizes, strict=True):
        keys = keys * size + _from_the_start(index, size) if len(sizes) > 1 else _from_the_start(index, size)
    return keys.reshape(-1)


def _from_the_start(index: torch.Tensor, size: int) -> torch.Tensor:
    # Elsewhere than on the CPU it would take longer to wait for the answer.
    if index.device.type == "cpu" and (index.numel() == 0 or int(index.min()) >= 0):
        return index
    return torch.where(index < 0, index + size, index)


def places_of(keys: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """The index per dimension that belongs to each number."""
    places = []
    for size in reversed(sizes):
        places.append(keys % size)
        keys = keys // size
    return places[::-1]


def in_bounds(index: torch.Tensor, size: int) -> bool:
    """Whether an index lies within a dimension. On a GPU nobody waits for the answer: a wrong one stops the device, as in stock."""
    if index.device.type == "cpu":
        if index.numel() == 0:
            return True
        lowest, highest = index.aminmax()
        return int(lowest) >= -size and int(highest) < size
    torch._assert_async(((index >= -size) & (index < size)).all())
    return True


def accumulate_rows(
    target: torch.Tensor, keys: torch.Tensor, sizes: list[int], values: torch.Tensor, how: Reduction
) -> None:
    """Reduce rows of values into the places of a tensor's first dimensions.

    Args:
        target: Changed in place; its first dimensions have the sizes `sizes`.
        keys: Numbers of places, (n,), from 0 to the product of `sizes`.
        sizes: Sizes of the dimensions that are indexed.
        values: Of shape (n, *other dimensions of target).
        how: What is done with several values of one place.
    """
    if len(keys) == 0 or values.numel() == 0:
        return
    if how == SUM and target.device.type in ONE_BY_ONE:
        _one_by_one(target, keys, sizes, values)
        return
    found = distinct_runs(keys, math.prod(sizes))
    rows = values.reshape(len(keys), -1)
    rows = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows.to(accumulation_dtype(rows.dtype))
    reduced = reduce_runs(found.runs, rows, "sum" if how.name == "mean" else how.name)
    if values.is_complex():
        reduced = torch.view_as_complex(reduced.unflatten(1, (-1, 2)))
    reduced = reduced.index_select(0, found.numbers).view(-1, *values.shape[1:])
    counts = torch.diff(found.runs.bounds).index_select(0, found.numbers)
    places = places_of(found.keys, sizes)
    before = target[tuple(places)]
    result = how.joined(before.to(accumulation_dtype(before.dtype)), reduced, counts).to(target.dtype)
    torch.ops.aten._index_put_impl_(target, list(places), result, False)


def _one_by_one(target: torch.Tensor, keys: torch.Tensor, sizes: list[int], values: torch.Tensor) -> None:
    rest = math.prod(target.shape[len(sizes) :])
    # Rows of one element each would be added by a slower loop.
    columns = [] if rest == 1 else [rest]
    rows = target.reshape(math.prod(sizes), *columns)
    rows.index_add_(0, keys, values.reshape(len(keys), *columns))
    if rows.data_ptr() != target.data_ptr():
        target.copy_(rows.view(target.shape))


def write_last(target: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write values to places of a flattened tensor; of several for one place, the last one stays.

    Args:
        target: Changed in place.
        keys: Numbers of places, (n,), from 0.
        values: Of shape (n,).
    """
    if target.device.type in ONE_BY_ONE and target.is_contiguous():
        target.view(-1).scatter_(0, keys, values)
        return
    ordered, order = torch.sort(keys, stable=True)
    last = order[torch.searchsorted(ordered, ordered, right=True) - 1]
    places = places_of(ordered, list(target.shape))
    torch.ops.aten._index_put_impl_(target, list(places), values[last], False)
