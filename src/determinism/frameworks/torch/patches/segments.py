"""Sums and products of values by key, in one order: that in which the values lie.

A stable sort brings the values of one key together, in their order; then each key's values are reduced one after the other. Long runs are
cut into pieces of one length, so that a key that comes a million times does not keep a single thread busy. Nothing here depends on which
thread comes first, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

ONE_BY_ONE = {"cpu"}
"""Types of devices on which `index_add_` and, along a single dimension, `scatter_` take one value after the other: the CPU's kernels loop over
the index."""
PIECE = 256
"""How many values of one key are reduced by one thread."""
_KERNELS = {"sum": ("sum", 0), "prod": ("prod", 1), "amax": ("max", float("-inf")), "amin": ("min", float("inf"))}
"""Per reduction what `segment_reduce` calls it, and what it begins with."""
_OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "amax": torch.maximum,
    "amin": torch.minimum,
}


@dataclass(frozen=True)
class Runs:
    """Keys in ascending order: `order[n]` is where the n-th of them stood, and key k's stand at `bounds[k]` to `bounds[k + 1]`."""

    keys: torch.Tensor
    order: torch.Tensor
    bounds: torch.Tensor


@dataclass(frozen=True)
class DistinctRuns:
    """Runs of the keys that occur, numbered from 0; there is room for more, which repeats the last one.

    Attributes:
        runs: As if the numbers were the keys.
        keys: The key of each number.
        numbers: For each place the number whose key and result it holds: its own, or the last one.
    """

    runs: Runs
    keys: torch.Tensor
    numbers: torch.Tensor


def runs_of(keys: torch.Tensor, size: int) -> Runs:
    """The runs of keys from 0 to `size` (exclusive); int64, one dimension."""
    ordered, order = torch.sort(keys, stable=True)
    every_key = torch.arange(size + 1, device=keys.device)
    return Runs(ordered, order, torch.searchsorted(ordered, every_key))


def distinct_runs(keys: torch.Tensor, size: int) -> DistinctRuns:
    """The runs of the keys that occur, of at least one key; needs memory for the keys, not for `size`."""
    ordered, order = torch.sort(keys, stable=True)
    number = torch.zeros_like(ordered)
    number[1:] = torch.cumsum(ordered[1:] != ordered[:-1], 0)
    room = min(len(ordered), size)
    bounds = torch.searchsorted(number, torch.arange(room + 1, device=keys.device))
    places = torch.minimum(torch.arange(room, device=keys.device), number[-1])
    return DistinctRuns(Runs(number, order, bounds), ordered[bounds[places]], places)


def reduce_runs(runs: Runs, values: torch.Tensor, reduction: str) -> torch.Tensor:
    """Reduce the values of each key.

    Args:
        runs: The runs of the keys.
        values: Of shape (keys, columns); of any real dtype but float16 and bfloat16, which would be rounded in between.
        reduction: `sum`, `prod`, `amax` or `amin`. What no value belongs to gets something that means nothing; 0 for a sum.

    Returns:
        Of shape (size, columns).
    """
    ordered = values.index_select(0, runs.order)
    if not values.is_floating_point():
        return _scanned(runs, ordered, reduction)
    bounds = runs.bounds
    if len(ordered) > PIECE:
        pieces, bounds = _pieces(runs)
        ordered = _reduced(ordered, pieces, reduction)
    return _reduced(ordered, bounds, reduction)


def _reduced(ordered: torch.Tensor, bounds: torch.Tensor, reduction: str) -> torch.Tensor:
    kernel, initial = _KERNELS[reduction]
    return torch.segment_reduce(ordered, kernel, offsets=bounds, axis=0, unsafe=True, initial=initial)


def _pieces(runs: Runs) -> tuple[torch.Tensor, torch.Tensor]:
    """Bounds of the pieces, and of each key's among them. Pieces begin anew with each key, and more may be there than are used."""
    begins = runs.bounds[:-1]
    rank = torch.arange(len(runs.keys), device=runs.keys.device) - begins[runs.keys]
    number = torch.cumsum(rank % PIECE == 0, 0) - 1
    room = len(runs.keys) // PIECE + min(len(runs.keys), len(begins))
    pieces = torch.searchsorted(number, torch.arange(room + 1, device=number.device))
    used = (torch.diff(runs.bounds) + PIECE - 1) // PIECE
    bounds = torch.zeros_like(runs.bounds)
    torch.cumsum(used, 0, out=bounds[1:])
    return pieces, bounds


def _scanned(runs: Runs, ordered: torch.Tensor, reduction: str) -> torch.Tensor:
    """Reduce integers, for which there is no kernel that reduces runs: each place takes in twice as many as before."""
    join = _OF_TWO[reduction]
    step = 1
    while step < len(ordered):
        same = (runs.keys[step:] == runs.keys[:-step]).unsqueeze(1)
        joined = join(ordered[step:], ordered[:-step])
        ordered = torch.cat([ordered[:step], torch.where(same, joined, ordered[step:])])
        step *= 2
    return ordered.index_select(0, (runs.bounds[1:] - 1).clamp(min=0))


def sum_by_key(keys: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
    """Add up values by key.

    Args:
        keys: Of shape (n,), int64, from 0 to `size` (exclusive).
        values: Of shape (n, columns), float32 or float64.
        size: How many keys there may be.

    Returns:
        Of shape (size, columns).
    """
    if keys.device.type in ONE_BY_ONE:
        return values.new_zeros(size, values.shape[1]).index_add_(0, keys, values)
    if len(keys) == 0:
        return values.new_zeros(size, values.shape[1])
    return reduce_runs(runs_of(keys, size), values, "sum")
