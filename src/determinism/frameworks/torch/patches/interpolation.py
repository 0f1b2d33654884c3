"""Gradients of interpolation: linear, bilinear, trilinear, bicubic, and with antialiasing.

They are maps along one axis each, so their gradients are too. Stock kernels for GPUs add the shares with atomics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.patches.axis_maps import cubic, linear, scale_of
from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.taps import Shares, Taps, accumulation_dtype, gather_shares, tabulated
from determinism.frameworks.torch.patches.tensors import plain, suggested_format

# The maps along one axis of interpolation with antialiasing: filters that grow with the factor of downscaling.

_CUBIC = -0.5


def _triangle(x: torch.Tensor) -> torch.Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: torch.Tensor) -> torch.Tensor:
    x = x.abs()
    near = ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * _CUBIC
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _lanczos(x: torch.Tensor) -> torch.Tensor:
    turns = x * math.pi
    lobes = torch.sin(turns) * torch.sin(turns / 3) * 3 / (turns * turns)
    return torch.where(x == 0, torch.ones_like(x), torch.where(x.abs() < 3, lobes, torch.zeros_like(x)))


_FILTERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "linear": (_triangle, 2),
    "cubic": (_cubic, 4),
    "lanczos": (_lanczos, 6),
}
"""Per name the filter, and how many inputs wide it is where nothing is scaled down."""


@tabulated
def antialiased(
    name: str, input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> tuple[Shares, int]:
    """Each output is a weighted mean over a window; the weights are those of the filter, divided by their sum."""
    weigh, width = _FILTERS[name]
    step = scale_of(input_size, output_size, align_corners, scale, dtype)
    support = (width / 2) * step if step >= 1 else torch.tensor(width / 2, dtype=dtype)
    narrow = 1 / step if step >= 1 else torch.ones((), dtype=dtype)
    center = step * (torch.arange(output_size).to(dtype) + 0.5)
    starts = (center - support + 0.5).to(torch.int64).clamp(min=0)
    ends = (center + support + 0.5).to(torch.int64).clamp(max=input_size)
    lengths = (ends - starts).clamp(min=0)
    offsets = torch.arange(int(lengths.max()) if output_size else 0)
    inside = offsets < lengths.unsqueeze(1)
    distance = (offsets + (starts.to(dtype) - center).unsqueeze(1) + 0.5) * narrow
    weights = weigh(distance) * inside
    total = weights.sum(1, keepdim=True)
    weights = torch.where(total != 0, weights / total, weights)
    outputs = torch.arange(output_size).unsqueeze(1).expand_as(inside)
    inputs = starts.unsqueeze(1) + offsets
    return Shares(outputs[inside], inputs[inside], weights[inside]), input_size


AxisTaps = Callable[..., Taps]


def _gradient(axis_taps: AxisTaps, keeps_format: bool) -> Callable[..., torch.Tensor]:
    def gradient(
        grad_output: torch.Tensor,
        output_size: list[int],
        input_size: list[int],
        align_corners: bool,
        *scales: float | None,
        **named: float | None,
    ) -> torch.Tensor:
        axes = len(input_size) - 2
        factors = [*scales, *named.values()]
        factors += [None] * (axes - len(factors))
        values = grad_output.to(accumulation_dtype(grad_output.dtype))
        for axis in range(axes):
            taps = axis_taps(values, input_size[2 + axis], output_size[axis], align_corners, factors[axis])
            values = gather_shares(values, 2 + axis, taps)
        memory_format = suggested_format(grad_output) if keeps_format else torch.contiguous_format
        return values.to(grad_output.dtype).contiguous(memory_format=memory_format)

    return gradient


def _supports(
    grad_output: torch.Tensor, output_size: list[int], input_size: list[int], *flags: Any, **named: Any
) -> bool:
    shape = [*input_size[:2], *output_size]
    return (
        plain(grad_output)
        and list(grad_output.shape) == shape
        and all(size > 0 for size in (*shape[1:], *input_size[1:]))
    )


def _antialiased(name: str) -> AxisTaps:
    return lambda values, *parameters: antialiased(values, name, *parameters)


def _patch(identity: str, what: str, op: str, axis_taps: AxisTaps, axes: int) -> Patch:
    def example(device: Any) -> tuple[Any, ...]:
        grad = torch.arange(5.0**axes, device=device).view(1, 1, *[5] * axes)
        return grad, [5] * axes, [1, 1, *[3] * axes], False

    return Patch(
        identity=identity,
        what=f"{what} (gradient)",
        overloads=(op, f"{op}.grad_input"),
        run=_gradient(axis_taps, keeps_format="bicubic" not in identity),
        supports=_supports,
        example=example,
    )


PATCHES = (
    _patch("interpolate-linear", "interpolate linear", "upsample_linear1d_backward", linear, 1),
    _patch("interpolate-bilinear", "interpolate bilinear", "upsample_bilinear2d_backward", linear, 2),
    _patch("interpolate-trilinear", "interpolate trilinear", "upsample_trilinear3d_backward", linear, 3),
    _patch("interpolate-bicubic", "interpolate bicubic", "upsample_bicubic2d_backward", cubic, 2),
    _patch(
        "interpolate-bilinear-antialias",
        "interpolate bilinear with antialias",
        "_upsample_bilinear2d_aa_backward",
        _antialiased("linear"),
        2,
    ),
    _patch(
        "interpolate-bicubic-antialias",
        "interpolate bicubic with antialias",
        "_upsample_bicubic2d_aa_backward",
        _antialiased("cubic"),
        2,
    ),
    _patch(
        "interpolate-lanczos",
        "interpolate lanczos",
        "_upsample_lanczos2d_aa_backward",
        _antialiased("lanczos"),
        2,
    ),
)
