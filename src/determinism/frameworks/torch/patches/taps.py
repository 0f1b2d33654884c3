"""Linear maps along one axis, transposed: the gradient of each place is a sum over few places of the output, in one order.

Pooling by averages and interpolation are such maps, one per axis. The stock kernels add each output's share to its inputs with atomics; here
each input gathers its shares, in the order of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import torch


@dataclass(frozen=True)
class Shares:
    """What a map along one axis takes from where: `weights[n]` times the input at `inputs[n]` goes into the output at `outputs[n]`."""

    outputs: torch.Tensor
    inputs: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Taps:
    """Per place of the input the places of the output that it had a share in, at most `len(places)` of them.

    Attributes:
        places: Of shape (taps, input), int64.
        weights: Of the same shape.
        complete: Per tap whether each input has it.
        there: Of the same shape as `places`: whether the input has the tap.
    """

    places: torch.Tensor
    weights: torch.Tensor
    complete: tuple[bool, ...]
    there: torch.Tensor


def taps_of(shares: Shares, input_size: int) -> Taps:
    """The shares, ordered by input, and for each input by output."""
    order = torch.argsort(shares.inputs, stable=True)
    inputs = shares.inputs[order]
    counts = torch.bincount(inputs, minlength=input_size)
    first = torch.cumsum(counts, 0) - counts
    rank = torch.arange(len(inputs)) - first[inputs]
    depth = int(counts.max()) if input_size else 0
    places = torch.zeros(depth, input_size, dtype=torch.int64)
    weights = torch.zeros(depth, input_size, dtype=shares.weights.dtype)
    places[rank, inputs] = shares.outputs[order]
    weights[rank, inputs] = shares.weights[order]
    there = torch.arange(depth).unsqueeze(1) < counts
    return Taps(places, weights, tuple(bool(row.all()) for row in there), there)


def tabulated(make: Callable[..., tuple[Shares, int]]) -> Callable[..., Taps]:
    """Keep the taps of a map for each set of its parameters, and on each device that asks.

    They are made on the CPU and copied, which waits for the device; so a CUDA graph can only be captured after a first run, as PyTorch asks
    for anyway.

    Args:
        make: Gets sizes, flags and last the dtype of the weights; gives the shares of the map, and the size of its input.
    """

    @lru_cache(maxsize=4096)
    def on(device: torch.device, *parameters: Any) -> Taps:
        found = taps_of(*make(*parameters))
        return Taps(found.places.to(device), found.weights.to(device), found.complete, found.there.to(device))

    @wraps(make)
    def taps(values: torch.Tensor, *parameters: Any) -> Taps:
        return on(values.device, *parameters, _real(values.dtype))

    return taps


def gather_shares(values: torch.Tensor, axis: int, taps: Taps) -> torch.Tensor:
    """The transposed map, applied to one axis of `values`, tap after tap."""
    along = [1] * values.dim()
    along[axis] = -1
    total: torch.Tensor | None = None
    for places, weights, complete, there in zip(taps.places, taps.weights, taps.complete, taps.there, strict=True):
        share = values.index_select(axis, places).mul_(weights.view(along))
        if not complete:  # what is not there must not become NaN where the output holds one
            share = share.masked_fill_(~there.view(along), 0)
        total = share if total is None else total.add_(share)
    if total is None:
        shape = list(values.shape)
        shape[axis] = taps.places.shape[1]
        total = values.new_zeros(shape)
    return total


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values are added up: float32 for those of 16 bits, else their own."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _real(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
