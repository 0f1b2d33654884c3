"""The maps along one axis of pooling by averages and of interpolation, with the formulas of PyTorch's own kernels.

Positions and weights are computed in the dtype in which the stock kernels compute them (float32 for float32, float16 and bfloat16), so that
the gradient belongs to the map that the forward op applied.
"""

from __future__ import annotations

import torch

from determinism.frameworks.torch.patches.taps import Shares, tabulated

_CUBIC = -0.75
"""The coefficient of cubic convolution that `interpolate` and `grid_sample` use; with antialiasing it is -0.5."""


@tabulated
def adaptive_average(input_size: int, output_size: int, dtype: torch.dtype) -> tuple[Shares, int]:
    """Each output is the mean over from floor(o I / O) to ceil((o + 1) I / O)."""
    outputs = torch.arange(output_size)
    starts = outputs * input_size // output_size
    ends = ((outputs + 1) * input_size + output_size - 1) // output_size
    return _windows(starts, ends, 1.0 / (ends - starts).to(dtype)), input_size


@tabulated
def window_sum(
    input_size: int, output_size: int, kernel: int, stride: int, padding: int, dtype: torch.dtype
) -> tuple[Shares, int]:
    """Each output is the sum over its window, without what lies in the padding."""
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


@tabulated
def linear(
    input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> tuple[Shares, int]:
    """Linear interpolation between two neighbours."""
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


@tabulated
def cubic(
    input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> tuple[Shares, int]:
    """Cubic convolution of four neighbours; beyond the border the outermost one counts again."""
    outputs = torch.arange(output_size)
    source = _source(input_size, output_size, align_corners, scale, dtype)
    low = source.floor().to(torch.int64).clamp(max=input_size - 1)
    neighbours = [(low + step).clamp(0, input_size - 1) for step in (-1, 0, 1, 2)]
    weights = cubic_weights((source - low).clamp(0, 1))
    return _together([outputs] * 4, neighbours, weights), input_size


def cubic_weights(part: torch.Tensor) -> list[torch.Tensor]:
    """The weights of the four neighbours of a place that lies `part` behind the second one."""
    near, far = [part, 1 - part], [part + 1, 2 - part]
    first, second = (((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1 for x in near)
    before, after = (((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC for x in far)
    return [before, first, second, after]


def cubic_slopes(part: torch.Tensor) -> list[torch.Tensor]:
    """The derivatives of `cubic_weights` by `part`."""
    near, far = [part, 1 - part], [part + 1, 2 - part]
    first, second = ((3 * (_CUBIC + 2) * x - 2 * (_CUBIC + 3)) * x for x in near)
    before, after = ((3 * _CUBIC * x - 10 * _CUBIC) * x + 8 * _CUBIC for x in far)
    return [before, first, -second, -after]


def _together(outputs: list[torch.Tensor], inputs: list[torch.Tensor], weights: list[torch.Tensor]) -> Shares:
    """The shares of several neighbours; those of one output follow each other."""
    each = [torch.stack(parts, 1).reshape(-1) for parts in (outputs, inputs, weights)]
    return Shares(*each)


def scale_of(
    input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> torch.Tensor:
    """Inputs per output, as PyTorch computes it."""
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
