"""Gradients of interpolation: linear, bilinear, trilinear, bicubic, and with antialiasing.

They are maps along one axis each, so their gradients are too. Stock kernels for GPUs add the shares with atomics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.patches.antialiased_maps import antialiased
from determinism.frameworks.torch.patches.axis_maps import cubic, linear
from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.taps import Taps, accumulation_dtype, gather_shares
from determinism.frameworks.torch.patches.tensors import plain, suggested_format

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
