"""Gradients of pooling by averages: adaptive in two and three dimensions, and by windows in three."""

from __future__ import annotations

from typing import Any

import torch

from determinism.frameworks.torch.patches.axis_maps import adaptive_average, window_sum
from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.taps import accumulation_dtype, gather_shares
from determinism.frameworks.torch.patches.tensors import only_batch_empty, plain, spatial, suggested_format


def adaptive_gradient(axes: int) -> Any:
    """The gradient of adaptive pooling over the last `axes` dimensions."""

    def gradient(grad_output: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        values = grad_output.to(accumulation_dtype(given.dtype))
        for axis in range(values.dim() - axes, values.dim()):
            values = gather_shares(values, axis, adaptive_average(values, given.shape[axis], values.shape[axis]))
        memory_format = suggested_format(given) if axes == 2 else torch.contiguous_format
        return values.to(given.dtype).contiguous(memory_format=memory_format)

    return gradient


def adaptive_supports(axes: int) -> Any:
    """Whether the shapes are those that pooling makes."""

    def supports(grad_output: torch.Tensor, given: torch.Tensor, *more: Any) -> bool:
        return (
            plain(grad_output, given)
            and given.dim() in (axes + 1, axes + 2)
            and grad_output.dim() == given.dim()
            and grad_output.shape[:-axes] == given.shape[:-axes]
            and only_batch_empty(grad_output, axes)
            and only_batch_empty(given, axes)
        )

    return supports


def window_gradient(
    grad_output: torch.Tensor,
    given: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> torch.Tensor:
    """The gradient of `avg_pool3d`: each output, divided by what its window was divided by, added to all places of the window."""
    kernels = spatial(kernel_size, 3)
    strides, paddings = spatial(stride, 3) or kernels, spatial(padding, 3)
    values = grad_output.to(accumulation_dtype(given.dtype))
    windows = list(zip(given.shape[-3:], values.shape[-3:], kernels, strides, paddings, strict=True))
    if divisor_override is None:
        divisor = torch.ones((), dtype=values.dtype, device=values.device)
        for window in windows:
            divisor = divisor.unsqueeze(-1) * _lengths(*window, count_include_pad).to(values)
    else:
        divisor = torch.tensor(divisor_override, dtype=values.dtype, device=values.device)
    values = values / divisor
    for axis, window in zip((-3, -2, -1), windows, strict=True):
        values = gather_shares(values, values.dim() + axis, window_sum(values, *window))
    return values.to(given.dtype).contiguous()


def _lengths(
    input_size: int, output_size: int, kernel: int, stride: int, padding: int, with_padding: bool
) -> torch.Tensor:
    """How many places of an axis each window counts."""
    starts = torch.arange(output_size) * stride - padding
    ends = (starts + kernel).clamp(max=input_size + padding)
    return ends - starts if with_padding else ends.clamp(max=input_size) - starts.clamp(min=0)


def _window_supports(
    grad_output: torch.Tensor,
    given: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> bool:
    if not adaptive_supports(3)(grad_output, given) or divisor_override == 0:
        return False
    if any(len(sizes) not in (1, 3) for sizes in (kernel_size, stride or [1], padding)):
        return False
    kernels = spatial(kernel_size, 3)
    strides, paddings = spatial(stride, 3) or kernels, spatial(padding, 3)
    expected = [
        _output_size(*window, ceil_mode) for window in zip(given.shape[-3:], kernels, strides, paddings, strict=True)
    ]
    return expected == list(grad_output.shape[-3:])


def _output_size(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int | None:
    if kernel <= 0 or stride <= 0 or not 0 <= padding <= kernel // 2:
        return None
    windows = (size + 2 * padding - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1
    # A last window must begin within the input or the padding before it.
    return windows - 1 if ceil_mode and (windows - 1) * stride >= size + padding else windows


def _adaptive(axes: int) -> Patch:
    op = f"_adaptive_avg_pool{axes}d_backward"

    def example(device: Any) -> tuple[Any, ...]:
        return torch.ones(1, *[2] * axes, device=device), torch.ones(1, *[3] * axes, device=device)

    return Patch(
        identity=f"adaptive-avg-pool{axes}d",
        what=f"adaptive_avg_pool{axes}d (gradient)",
        overloads=(op,) if axes == 2 else (op, "adaptive_avg_pool3d_backward.grad_input"),
        run=adaptive_gradient(axes),
        supports=adaptive_supports(axes),
        example=example,
    )


def _window_example(device: Any) -> tuple[Any, ...]:
    return (
        torch.ones(1, 2, 2, 2, device=device),
        torch.ones(1, 4, 4, 4, device=device),
        [2],
        [2],
        [0],
        False,
        True,
        None,
    )


PATCHES = (
    _adaptive(2),
    _adaptive(3),
    Patch(
        identity="avg-pool3d",
        what="avg_pool3d (gradient)",
        overloads=("avg_pool3d_backward", "avg_pool3d_backward.grad_input"),
        run=window_gradient,
        supports=_window_supports,
        example=_window_example,
    ),
)
