"""Gradients of pooling, and unpooling.

Adaptive average pooling in two and three dimensions, average pooling in three; adaptive and fractional max pooling, and max pooling in three
dimensions; `max_unpool2d` and `max_unpool3d` (and `max_unpool1d`, which calls the former).

The gradient of a maximum goes to the input at its index; where windows overlap, several gradients go to one input and are added up in the order
of the outputs. In unpooling, overlapping windows write one place more than once: with indices from `max_pool` all these values are equal; if not,
the last one stays, as in the stock CPU kernel, while the stock GPU kernel keeps an arbitrary one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.patches.indexed_writes import write_last
from determinism.frameworks.torch.patches.ordered_sums import (
    accumulation_dtype,
    adaptive_average,
    gather_shares,
    only_batch_empty,
    plain,
    plain_indices,
    spatial,
    suggested_format,
    sum_by_key,
    window_sum,
)
from determinism.frameworks.torch.patches.patch import Patch


def adaptive_average_gradient(axes: int) -> Any:
    """Make the function that computes the gradient of adaptive average pooling over the last `axes` dimensions."""

    def gradient(grad_output: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        values = grad_output.to(accumulation_dtype(given.dtype))
        for axis in range(values.dim() - axes, values.dim()):
            values = gather_shares(values, axis, adaptive_average(values, given.shape[axis], values.shape[axis]))
        memory_format = suggested_format(given) if axes == 2 else torch.contiguous_format
        return values.to(given.dtype).contiguous(memory_format=memory_format)

    return gradient


def _adaptive_average_supports(axes: int) -> Any:
    """Make the function that checks whether the shapes result from pooling."""

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


def average_window_gradient(
    grad_output: torch.Tensor,
    given: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> torch.Tensor:
    """Compute the gradient of `avg_pool3d`: each output, divided by its divisor, is added to its whole window."""
    kernels = spatial(kernel_size, 3)
    strides, paddings = spatial(stride, 3) or kernels, spatial(padding, 3)
    values = grad_output.to(accumulation_dtype(given.dtype))
    windows = list(zip(given.shape[-3:], values.shape[-3:], kernels, strides, paddings, strict=True))
    if divisor_override is None:
        divisor = torch.ones((), dtype=values.dtype, device=values.device)
        for window in windows:
            divisor = divisor.unsqueeze(-1) * _window_lengths(*window, count_include_pad).to(values)
    else:
        divisor = torch.tensor(divisor_override, dtype=values.dtype, device=values.device)
    values = values / divisor
    for axis, window in zip((-3, -2, -1), windows, strict=True):
        values = gather_shares(values, values.dim() + axis, window_sum(values, *window))
    return values.to(given.dtype).contiguous()


def _window_lengths(
    input_size: int, output_size: int, kernel: int, stride: int, padding: int, with_padding: bool
) -> torch.Tensor:
    """Return how many places on an axis each window counts."""
    starts = torch.arange(output_size) * stride - padding
    ends = (starts + kernel).clamp(max=input_size + padding)
    return ends - starts if with_padding else ends.clamp(max=input_size) - starts.clamp(min=0)


def _average_window_supports(
    grad_output: torch.Tensor,
    given: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> bool:
    if not _adaptive_average_supports(3)(grad_output, given) or divisor_override == 0:
        return False
    if any(len(sizes) not in (1, 3) for sizes in (kernel_size, stride or [1], padding)):
        return False
    kernels = spatial(kernel_size, 3)
    strides, paddings = spatial(stride, 3) or kernels, spatial(padding, 3)
    expected = [
        _output_size(*window, dilation=1, ceil=ceil_mode)
        for window in zip(given.shape[-3:], kernels, strides, paddings, strict=True)
    ]
    return expected == list(grad_output.shape[-3:])


def _output_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int | None:
    if min(kernel, stride, dilation) <= 0 or not 0 <= padding <= kernel // 2:
        return None
    windows = (size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if ceil else 0)) // stride + 1
    # A last window must begin within the input or the padding before it.
    return windows - 1 if ceil and (windows - 1) * stride >= size + padding else windows


def _adaptive_average(axes: int) -> Patch:
    op = f"_adaptive_avg_pool{axes}d_backward"
    return Patch(
        identity=f"adaptive-avg-pool{axes}d",
        what=f"adaptive_avg_pool{axes}d (gradient)",
        overloads=(op,) if axes == 2 else (op, "adaptive_avg_pool3d_backward.grad_input"),
        run=adaptive_average_gradient(axes),
        supports=_adaptive_average_supports(axes),
        example=lambda device: tuple(torch.ones(1, *[size] * axes, device=device) for size in (2, 3)),
    )


def _average_window_example(device: Any) -> tuple[Any, ...]:
    windows = [2], [2], [0], False, True, None
    return torch.ones(1, 2, 2, 2, device=device), torch.ones(1, 4, 4, 4, device=device), *windows


def _keys(indices: torch.Tensor, axes: int, planes: int, plane: int) -> torch.Tensor:
    """Number the places of all planes of the last `axes` dimensions, given their numbers within each plane."""
    starts = torch.arange(planes, device=indices.device).unsqueeze(1) * plane
    return (indices.reshape(planes, math.prod(indices.shape[-axes:])) + starts).reshape(-1)


def _max_gradient(axes: int, keeps_format: bool) -> Callable[..., torch.Tensor]:
    """Make the function that adds up the gradients within each plane of the last `axes` dimensions."""

    def gradient(grad_output: torch.Tensor, given: torch.Tensor, *rest: Any) -> torch.Tensor:
        plane, planes = math.prod(given.shape[-axes:]), math.prod(given.shape[:-axes])
        values = grad_output.to(accumulation_dtype(given.dtype)).reshape(-1, 1)
        total = sum_by_key(_keys(rest[-1], axes, planes, plane), values, planes * plane)
        memory_format = suggested_format(given) if keeps_format else torch.contiguous_format
        return total.view(given.shape).to(given.dtype).contiguous(memory_format=memory_format)

    return gradient


def _max_supports(axes: int) -> Callable[..., bool]:
    shapes_fit = _adaptive_average_supports(axes)

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
    """Whether the op's parameters, if any, give this output size for the input; if not, the stock kernel raises."""
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
        _output_size(size, kernel, stride, padding, dilation, parameters[4])
        for size, kernel, stride, padding, dilation in zip(input_size, *full, strict=True)
    ]


def _max_example(axes: int, *parameters: Any) -> Callable[[Any], tuple[Any, ...]]:
    def example(device: Any) -> tuple[Any, ...]:
        grad = torch.ones(1, 1, *[2] * axes, device=device)
        given = torch.ones(1, 1, *[4] * axes, device=device)
        return grad, given, *parameters, torch.zeros_like(grad, dtype=torch.int64)

    return example


def _max_patch(identity: str, op: str, axes: int, *parameters: Any) -> Patch:
    return Patch(
        identity=identity,
        what=f"{identity.replace('-', '_')} (gradient)",
        overloads=(op, f"{op}.grad_input"),
        run=_max_gradient(axes, keeps_format=identity in _KEEP_FORMAT),
        supports=_max_supports(axes),
        example=_max_example(axes, *parameters),
    )


_KEEP_FORMAT = ("adaptive-max-pool2d", "max-pool3d")
"""Patches of ops whose gradients have the memory format of the input; all other gradients are contiguous."""
_WINDOWS = ([2] * 3, [2] * 3, [0] * 3, [1] * 3, False)


def _unpool(axes: int) -> Callable[..., torch.Tensor]:
    def unpool(given: torch.Tensor, indices: torch.Tensor, output_size: list[int], *rest: Any) -> torch.Tensor:
        lead = list(given.shape[:-axes])
        plane, planes = math.prod(output_size), math.prod(lead)
        result = torch.zeros(planes * plane, dtype=given.dtype, device=given.device)
        write_last(result, _keys(indices, axes, planes, plane), given.reshape(-1))
        on_cpu = given.device.type == "cpu" and axes == 2
        memory_format = suggested_format(given) if on_cpu else torch.contiguous_format
        return result.view(*lead, *output_size).contiguous(memory_format=memory_format)

    return unpool


def _unpool_supports(axes: int) -> Callable[..., bool]:
    def supports(given: torch.Tensor, indices: torch.Tensor, output_size: list[int], *rest: Any) -> bool:
        if given.layout != torch.strided or not plain_indices(indices, like=given) or given.shape != indices.shape:
            return False
        if given.dim() not in (axes + 1, axes + 2) or len(output_size) != axes or any(len(one) != axes for one in rest):
            return False
        if not only_batch_empty(given, axes) or min(output_size) <= 0 or (rest and min(rest[0]) <= 0):
            return False
        _check_indices(indices, output_size)
        return True

    return supports


def _check_indices(indices: torch.Tensor, output_size: list[int]) -> None:
    """Reject indices outside of the plane. The stock kernels do too, but they raise about deterministic mode first."""
    plane = math.prod(output_size)
    inside = ((indices >= 0) & (indices < plane)).all()
    if indices.device.type != "cpu":
        torch._assert_async(inside)
    elif not inside:
        wrong = indices[(indices < 0) | (indices >= plane)][0].item()
        if len(output_size) == 2:
            height, width = output_size
            raise RuntimeError(f"Found an invalid max index: {wrong} (output volumes are of size {height}x{width})")
        depth, height, width = output_size
        raise RuntimeError(f"found an invalid max index {wrong} (output volumes are of size {depth}x{height}x{width}")


def _unpool_patch(axes: int, *parameters: list[int]) -> Patch:
    def example(device: Any) -> tuple[Any, ...]:
        given = torch.ones(1, 1, *[1] * axes, device=device)
        return given, torch.zeros_like(given, dtype=torch.int64), [2] * axes, *parameters

    return Patch(
        identity=f"max-unpool{axes}d",
        what=f"max_unpool{axes}d",
        overloads=(f"max_unpool{axes}d", f"max_unpool{axes}d.out"),
        run=_unpool(axes),
        supports=_unpool_supports(axes),
        example=example,
    )


PATCHES = (
    _adaptive_average(2),
    _adaptive_average(3),
    Patch(
        identity="avg-pool3d",
        what="avg_pool3d (gradient)",
        overloads=("avg_pool3d_backward", "avg_pool3d_backward.grad_input"),
        run=average_window_gradient,
        supports=_average_window_supports,
        example=_average_window_example,
    ),
    _max_patch("adaptive-max-pool2d", "adaptive_max_pool2d_backward", 2),
    _max_patch("adaptive-max-pool3d", "adaptive_max_pool3d_backward", 3),
    _max_patch("fractional-max-pool2d", "fractional_max_pool2d_backward", 2, [2, 2], [2, 2]),
    _max_patch("fractional-max-pool3d", "fractional_max_pool3d_backward", 3, [2, 2, 2], [2, 2, 2]),
    _max_patch("max-pool3d", "max_pool3d_with_indices_backward", 3, *_WINDOWS),
    _unpool_patch(2),
    _unpool_patch(3, [2] * 3, [0] * 3),
)
