"""Sums in a fixed order, from which the replacements are built: transposed linear maps along one axis, and sums and products of values by key.

Average pooling and interpolation are linear maps, one per axis. In the gradient, stock kernels add each output's share to its inputs with atomics;
here each input gathers its shares, in the order of the outputs. Positions and weights are computed in the same dtype as in the stock kernels
(float32 for float32, float16 and bfloat16), so that the gradient matches the map that the forward op applied.

To sum by key, a stable sort groups the values of each key in their original order; then each key's values are reduced one after the other. Long
runs are cut into pieces of equal length, so that a key that occurs a million times is not left to a single thread. Nothing here depends on which
thread is first, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import torch

FLOATING = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
COMPLEX = frozenset({torch.complex64, torch.complex128})


def plain(*tensors: Any, dtypes: frozenset[torch.dtype] = FLOATING) -> bool:
    """Whether tensors are dense, are on one device, and share one dtype out of `dtypes`."""
    first = tensors[0]
    return first.dtype in dtypes and all(
        tensor.layout == torch.strided and tensor.device == first.device and tensor.dtype == first.dtype
        for tensor in tensors
    )


def plain_indices(*tensors: Any, like: torch.Tensor) -> bool:
    """Whether tensors are dense, of dtype int64, and on the same device as `like`."""
    return all(
        tensor.layout == torch.strided and tensor.dtype == torch.int64 and tensor.device == like.device
        for tensor in tensors
    )


def only_batch_empty(tensor: torch.Tensor, axes: int) -> bool:
    """Whether at most the batch has size 0; stock kernels reject any other empty dimension."""
    return all(size > 0 for size in tensor.shape[-axes - 1 :])


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """Return the memory format that PyTorch's kernels choose for outputs made from a tensor."""
    if tensor.dim() == 4 and _is_last(tensor, torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and _is_last(tensor, torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


def _is_last(tensor: torch.Tensor, memory_format: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=memory_format) and not tensor.is_contiguous()


def spatial(values: list[int], dimensions: int) -> list[int]:
    """Return one size per dimension, from a list that may have a single size for all."""
    return list(values) * dimensions if len(values) == 1 else list(values)


@dataclass(frozen=True)
class Shares:
    """A map along one axis: `weights[n]` times the input at `inputs[n]` is added to the output at `outputs[n]`."""

    outputs: torch.Tensor
    inputs: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Taps:
    """For each place of the input, the places of the output to which it contributed, at most `len(places)` of them.

    Attributes:
        places: Places of the output, (taps, input), int64.
        weights: Their weights, of the same shape.
        complete: For each tap, whether every input has it.
        there: Whether the input has the tap, of the same shape as `places`.
    """

    places: torch.Tensor
    weights: torch.Tensor
    complete: tuple[bool, ...]
    there: torch.Tensor


def taps_of(shares: Shares, input_size: int) -> Taps:
    """Order shares by input, and for each input by output."""
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


def cached_taps(make: Callable[..., tuple[Shares, int]]) -> Callable[..., Taps]:
    """Cache the taps of a map for each set of parameters and each device.

    They are made on the CPU and copied, which waits for the device; so a CUDA graph can only be captured after a first run, which PyTorch
    requires anyway.

    Args:
        make: Takes sizes, flags and finally the dtype of the weights; returns the shares of the map, and the size of its input.
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
    """Apply the transposed map to one axis of `values`, tap by tap."""
    along = [1] * values.dim()
    along[axis] = -1
    total: torch.Tensor | None = None
    for places, weights, complete, there in zip(taps.places, taps.weights, taps.complete, taps.there, strict=True):
        share = values.index_select(axis, places).mul_(weights.view(along))
        if not complete:  # a missing tap must not add a NaN that the output holds at its dummy place
            share = share.masked_fill_(~there.view(along), 0)
        total = share if total is None else total.add_(share)
    if total is None:
        shape = list(values.shape)
        shape[axis] = taps.places.shape[1]
        total = values.new_zeros(shape)
    return total


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values are added up: float32 for 16-bit dtypes, else their own."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _real(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


_CUBIC = -0.75
"""The coefficient of cubic convolution that `interpolate` and `grid_sample` use; with antialiasing it is -0.5."""


@cached_taps
def adaptive_average(input_size: int, output_size: int, dtype: torch.dtype) -> tuple[Shares, int]:
    """Map each output o to the mean of the inputs from floor(o I / O) to ceil((o + 1) I / O)."""
    outputs = torch.arange(output_size)
    starts = outputs * input_size // output_size
    ends = ((outputs + 1) * input_size + output_size - 1) // output_size
    return _windows(starts, ends, 1.0 / (ends - starts).to(dtype)), input_size


@cached_taps
def window_sum(
    input_size: int, output_size: int, kernel: int, stride: int, padding: int, dtype: torch.dtype
) -> tuple[Shares, int]:
    """Map each output to the sum over its window, without padding."""
    starts = torch.arange(output_size) * stride - padding
    ends = torch.minimum(starts + kernel, torch.tensor(input_size + padding))
    weights = torch.ones(output_size, dtype=dtype)
    return _windows(starts.clamp(min=0), ends.clamp(max=input_size), weights), input_size


def _windows(starts: torch.Tensor, ends: torch.Tensor, weights: torch.Tensor) -> Shares:
    lengths = (ends - starts).clamp(min=0)
    outputs = torch.repeat_interleave(torch.arange(len(starts)), lengths)
    begins = torch.cumsum(lengths, 0) - lengths
    inputs = torch.arange(len(outputs)) - begins[outputs] + starts[outputs]
    return Shares(outputs, inputs, weights[outputs])


@cached_taps
def linear(
    input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> tuple[Shares, int]:
    """Map each output to the linear interpolation between two neighbours."""
    outputs = torch.arange(output_size)
    if input_size == output_size:
        return Shares(outputs, outputs, torch.ones(output_size, dtype=dtype)), input_size
    source = _source(input_size, output_size, align_corners, scale, dtype)
    if not align_corners:
        source = source.clamp(min=0)
    low = source.floor().to(torch.int64).clamp(max=input_size - 1)
    high = (low + 1).clamp(max=input_size - 1)
    part = (source - low).clamp(0, 1)
    return _together([outputs] * 2, [low, high], [1 - part, part]), input_size


@cached_taps
def cubic(
    input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> tuple[Shares, int]:
    """Map each output to the cubic convolution of four neighbours; the border is repeated outwards."""
    outputs = torch.arange(output_size)
    source = _source(input_size, output_size, align_corners, scale, dtype)
    low = source.floor().to(torch.int64).clamp(max=input_size - 1)
    neighbours = [(low + step).clamp(0, input_size - 1) for step in (-1, 0, 1, 2)]
    weights = cubic_weights((source - low).clamp(0, 1))
    return _together([outputs] * 4, neighbours, weights), input_size


def cubic_weights(part: torch.Tensor) -> list[torch.Tensor]:
    """Return the weights of the four neighbours of a place that is `part` beyond the second one."""
    near, far = [part, 1 - part], [part + 1, 2 - part]
    first, second = (((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1 for x in near)
    before, after = (((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC for x in far)
    return [before, first, second, after]


def cubic_slopes(part: torch.Tensor) -> list[torch.Tensor]:
    """Return the derivatives of `cubic_weights` by `part`."""
    near, far = [part, 1 - part], [part + 1, 2 - part]
    first, second = ((3 * (_CUBIC + 2) * x - 2 * (_CUBIC + 3)) * x for x in near)
    before, after = ((3 * _CUBIC * x - 10 * _CUBIC) * x + 8 * _CUBIC for x in far)
    return [before, first, -second, -after]


def _together(outputs: list[torch.Tensor], inputs: list[torch.Tensor], weights: list[torch.Tensor]) -> Shares:
    """Combine the shares of several neighbours; those of one output are adjacent."""
    each = [torch.stack(parts, 1).reshape(-1) for parts in (outputs, inputs, weights)]
    return Shares(*each)


def scale_of(
    input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return the inputs per output, as PyTorch computes it."""
    one = torch.ones((), dtype=dtype)
    if align_corners:
        return one * (input_size - 1) / (output_size - 1) if output_size > 1 else one * 0
    return (one * (1.0 / scale)) if scale is not None and scale > 0 else one * input_size / output_size


def _source(
    input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> torch.Tensor:
    step = scale_of(input_size, output_size, align_corners, scale, dtype)
    places = torch.arange(output_size).to(dtype)
    return places * step if align_corners else step * (places + 0.5) - 0.5


ONE_BY_ONE = {"cpu"}
"""Device types on which `index_add_` and, along a single dimension, `scatter_` take one value after the other: the CPU's kernels loop over the
index."""
PIECE = 256
"""How many values of one key are reduced by one thread."""
_KERNELS = {"sum": ("sum", 0), "prod": ("prod", 1), "amax": ("max", float("-inf")), "amin": ("min", float("inf"))}
"""For each reduction, its name in `segment_reduce` and its initial value."""
_OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "amax": torch.maximum,
    "amin": torch.minimum,
}


@dataclass(frozen=True)
class Runs:
    """Keys in ascending order: the n-th one was at `order[n]`; those of key k are at `bounds[k]` to `bounds[k + 1]`."""

    keys: torch.Tensor
    order: torch.Tensor
    bounds: torch.Tensor


@dataclass(frozen=True)
class DistinctRuns:
    """Runs of the keys that occur, numbered from 0; unused entries at the end repeat the last one.

    Attributes:
        runs: The runs, with the numbers as keys.
        keys: The key of each entry.
        numbers: The number whose key and result each entry holds: its own, or the last one.
    """

    runs: Runs
    keys: torch.Tensor
    numbers: torch.Tensor


def runs_of(keys: torch.Tensor, size: int) -> Runs:
    """Find the runs of keys from 0 to `size` (exclusive); int64, one dimension."""
    ordered, order = torch.sort(keys, stable=True)
    every_key = torch.arange(size + 1, device=keys.device)
    return Runs(ordered, order, torch.searchsorted(ordered, every_key))


def distinct_runs(keys: torch.Tensor, size: int) -> DistinctRuns:
    """Find the runs of the keys that occur, at least one; needs memory for the keys only, not for `size`."""
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
        values: Values, (keys, columns), of any real dtype except float16 and bfloat16, which would be rounded between.
        reduction: `sum`, `prod`, `amax` or `amin`. Keys without values get meaningless results; 0 in a sum of floats.

    Returns:
        The results, (size, columns).
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
    """Find the bounds of the pieces, and each key's among them. Every key begins a new piece; spare ones may remain."""
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
    """Reduce integers, for which no kernel reduces runs: each pass doubles how many values each place includes."""
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
        keys: Keys, (n,), int64, from 0 to `size` (exclusive).
        values: Values, (n, columns), float32 or float64.
        size: The number of possible keys.

    Returns:
        The sums, (size, columns).
    """
    if keys.device.type in ONE_BY_ONE:
        return values.new_zeros(size, values.shape[1]).index_add_(0, keys, values)
    if len(keys) == 0:
        return values.new_zeros(size, values.shape[1])
    return reduce_runs(runs_of(keys, size), values, "sum")
