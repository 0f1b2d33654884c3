"""Gradients of padding by reflection and by repeating the border.

Along one axis the gradient of the input is that of the middle, and of each border what lies over it: one mirrored slice per side, or the
sum of the slice. Stock kernels for GPUs add the borders with atomics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.taps import accumulation_dtype
from determinism.frameworks.torch.patches.tensors import COMPLEX, FLOATING, only_batch_empty, plain, suggested_format

AlongAxis = Callable[[torch.Tensor, int, int, int, int], torch.Tensor]


def _middle(values: torch.Tensor, axis: int, size: int, before: int, after: int) -> torch.Tensor:
    """What lies over the input itself; zero where a negative padding cut it off."""
    kept = values.narrow(axis, max(before, 0), size + min(before, 0) + min(after, 0))
    if before >= 0 and after >= 0:
        return kept.clone(memory_format=torch.contiguous_format)
    shape = list(values.shape)
    shape[axis] = size
    result = values.new_zeros(shape)
    result.narrow(axis, max(-before, 0), kept.shape[axis]).copy_(kept)
    return result


def _reflected(values: torch.Tensor, axis: int, size: int, before: int, after: int) -> torch.Tensor:
    result = _middle(values, axis, size, before, after)
    length = values.shape[axis]
    if before > 0:
        result.narrow(axis, 1, before).add_(values.narrow(axis, 0, before).flip(axis))
    if after > 0:
        result.narrow(axis, size - 1 - after, after).add_(values.narrow(axis, length - after, after).flip(axis))
    return result


def _replicated(values: torch.Tensor, axis: int, size: int, before: int, after: int) -> torch.Tensor:
    result = _middle(values, axis, size, before, after)
    length = values.shape[axis]
    if before > 0:
        result.narrow(axis, 0, 1).add_(values.narrow(axis, 0, before).sum(axis, keepdim=True))
    if after > 0:
        result.narrow(axis, size - 1, 1).add_(values.narrow(axis, length - after, after).sum(axis, keepdim=True))
    return result


def _gradient(along_axis: AlongAxis, axes: int) -> Callable[..., torch.Tensor]:
    def gradient(grad_output: torch.Tensor, given: torch.Tensor, padding: list[int]) -> torch.Tensor:
        values = grad_output.to(accumulation_dtype(given.dtype))
        for number in range(axes):
            axis = values.dim() - 1 - number
            before, after = padding[2 * number : 2 * number + 2]
            values = along_axis(values, axis, given.shape[axis], before, after)
        # The kernels for the CPU keep the format of the input, those for GPUs do not.
        on_cpu = given.device.type == "cpu" and axes > 1
        memory_format = suggested_format(given) if on_cpu else torch.contiguous_format
        return values.to(given.dtype).contiguous(memory_format=memory_format)

    return gradient


def _supports(axes: int, reflect: bool) -> Callable[..., bool]:
    def supports(grad_output: torch.Tensor, given: torch.Tensor, padding: list[int]) -> bool:
        if not plain(grad_output, given, dtypes=FLOATING | COMPLEX) or len(padding) != 2 * axes:
            return False
        if (
            given.dim() not in (axes + 1, axes + 2)
            or grad_output.dim() != given.dim()
            or not only_batch_empty(given, axes)
        ):
            return False
        sizes = list(given.shape)
        for number in range(axes):
            axis = given.dim() - 1 - number
            before, after = padding[2 * number : 2 * number + 2]
            if reflect and max(before, after) >= sizes[axis]:
                return False
            if sizes[axis] + min(before, 0) + min(after, 0) <= 0:
                return False
            sizes[axis] += before + after
        return list(grad_output.shape) == sizes

    return supports


def _patch(kind: str, along_axis: AlongAxis, axes: int) -> Patch:
    op = f"{kind}_pad{axes}d_backward"

    def example(device: Any) -> tuple[Any, ...]:
        return torch.ones(1, *[5] * axes, device=device), torch.ones(1, *[3] * axes, device=device), [1] * (2 * axes)

    return Patch(
        identity=f"{kind}-pad{axes}d",
        what=f"{kind}_pad{axes}d (gradient)",
        overloads=(op, f"{op}.grad_input"),
        run=_gradient(along_axis, axes),
        supports=_supports(axes, kind == "reflection"),
        example=example,
    )


PATCHES = (
    *(_patch("reflection", _reflected, axes) for axes in (1, 2, 3)),
    *(_patch("replication", _replicated, axes) for axes in (1, 2, 3)),
)
