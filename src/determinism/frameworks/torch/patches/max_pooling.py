"""Gradients of pooling by maxima: adaptive, fractional, and by windows in three dimensions.

Each output's gradient goes to the input that its index names; where windows overlap, several go to one input. They are added up in the
order of the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.patches.average_pooling import adaptive_supports
from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.segments import sum_by_key
from determinism.frameworks.torch.patches.taps import accumulation_dtype
from determinism.frameworks.torch.patches.tensors import plain_indices, suggested_format


def _added_at_indices(
    grad_output: torch.Tensor, given: torch.Tensor, indices: torch.Tensor, axes: int, keeps_format: bool
) -> torch.Tensor:
    """The gradients, added up within each plane of the last `axes` dimensions."""
    plane, planes = math.prod(given.shape[-axes:]), math.prod(given.shape[:-axes])
    starts = torch.arange(planes, device=given.device).unsqueeze(1) * plane
    keys = (indices.reshape(planes, math.prod(indices.shape[-axes:])) + starts).reshape(-1)
    values = grad_output.to(accumulation_dtype(given.dtype)).reshape(-1, 1)
    total = sum_by_key(keys, values, planes * plane)
    memory_format = suggested_format(given) if keeps_format else torch.contiguous_format
    return total.view(given.shape).to(given.dtype).contiguous(memory_format=memory_format)


def _gradient(axes: int, keeps_format: bool) -> Callable[..., torch.Tensor]:
    def gradient(grad_output: torch.Tensor, given: torch.Tensor, *rest: Any) -> torch.Tensor:
        return _added_at_indices(grad_output, given, rest[-1], axes, keeps_format)

    return gradient


def _supports(axes: int) -> Callable[..., bool]:
    shapes_fit = adaptive_supports(axes)

    def supports(grad_output: torch.Tensor, given: torch.Tensor, *rest: Any) -> bool:
        indices = rest[-1]
        return (
            shapes_fit(grad_output, given)
            and plain_indices(indices, like=given)
            and indices.shape == grad_output.shape
            and _sizes_fit(list(given.shape[-axes:]), list(grad_output.shape[-axes:]), rest[:-1])
        )

    return supports


def _sizes_fit(input_size: list[int], output_size: list[int], parameters: tuple[Any, ...]) -> bool:
    """Whether the parameters of the op, if it has any, lead from one size to the other; else the stock kernel refuses."""
    if not parameters:
        return True
    if len(parameters) == 2:  # fractional: kernel and output sizes
        kernel, asked = parameters
        fits = zip(input_size, output_size, kernel, strict=False)
        return list(asked) == output_size and all(out + each - 1 <= size for size, out, each in fits)
    sizes = [list(each) for each in parameters[:4]]
    sizes[1] = sizes[1] or sizes[0]
    full = [each * len(input_size) if len(each) == 1 else each for each in sizes]
    if any(len(each) != len(input_size) for each in full):
        return False
    return output_size == [
        _pooled(size, kernel, stride, padding, dilation, parameters[4])
        for size, kernel, stride, padding, dilation in zip(input_size, *full, strict=True)
    ]


def _pooled(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int | None:
    if min(kernel, stride, dilation) <= 0 or not 0 <= padding <= kernel // 2:
        return None
    windows = (size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if ceil else 0)) // stride + 1
    return windows - 1 if ceil and (windows - 1) * stride >= size + padding else windows


def _example(axes: int, *parameters: Any) -> Callable[[Any], tuple[Any, ...]]:
    def example(device: Any) -> tuple[Any, ...]:
        grad = torch.ones(1, 1, *[2] * axes, device=device)
        given = torch.ones(1, 1, *[4] * axes, device=device)
        return grad, given, *parameters, torch.zeros_like(grad, dtype=torch.int64)

    return example


def _patch(identity: str, op: str, axes: int, *parameters: Any) -> Patch:
    return Patch(
        identity=identity,
        what=f"{identity.replace('-', '_')} (gradient)",
        overloads=(op, f"{op}.grad_input"),
        run=_gradient(axes, keeps_format=identity in _KEEP_FORMAT),
        supports=_supports(axes),
        example=_example(axes, *parameters),
    )


_KEEP_FORMAT = ("adaptive-max-pool2d", "max-pool3d")
"""Patches of ops that give the gradient the memory format of the input; those of others are contiguous."""
_WINDOWS = ([2] * 3, [2] * 3, [0] * 3, [1] * 3, False)

PATCHES = (
    _patch("adaptive-max-pool2d", "adaptive_max_pool2d_backward", 2),
    _patch("adaptive-max-pool3d", "adaptive_max_pool3d_backward", 3),
    _patch("fractional-max-pool2d", "fractional_max_pool2d_backward", 2, [2, 2], [2, 2]),
    _patch("fractional-max-pool3d", "fractional_max_pool3d_backward", 3, [2, 2, 2], [2, 2, 2]),
    _patch("max-pool3d", "max_pool3d_with_indices_backward", 3, *_WINDOWS),
)
