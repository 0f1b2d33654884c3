"""Gradients of `grid_sample`: of the input, to which several places of the grid may add, and of the grid.

The gradient of the input is a sum per place; stock kernels for GPUs add with atomics, cuDNN's too. The gradient of the grid is gathered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from determinism.frameworks.torch.patches.axis_maps import cubic_slopes, cubic_weights
from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.segments import sum_by_key
from determinism.frameworks.torch.patches.taps import accumulation_dtype
from determinism.frameworks.torch.patches.tensors import only_batch_empty, plain

# Where `grid_sample` reads: coordinates of the grid as places of the input, with their derivatives, for each padding mode.
#
# The formulas, and the treatment of NaN and of coordinates beyond the range of an int, are those of PyTorch's kernels
# (`GridSampler.h`).

ZEROS, BORDER, REFLECTION = 0, 1, 2
"""How `grid_sampler` numbers the modes of padding."""
_TOO_FAR = -100.0
"""What the kernels put in the place of a coordinate that no int holds."""


def unnormalized(coordinate: torch.Tensor, size: int, align_corners: bool) -> tuple[torch.Tensor, float]:
    """From -1 ... 1 to places of an axis, and the derivative."""
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1), (size - 1) / 2
    return ((coordinate + 1) * size - 1) / 2, size / 2


def padded(place: torch.Tensor, size: int, mode: int, align_corners: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the mode of padding moves a place to, and by which factor the derivative changes."""
    if mode == ZEROS:
        return place, torch.ones_like(place)
    factor = torch.ones_like(place)
    if mode == REFLECTION:
        bounds = (0, 2 * (size - 1)) if align_corners else (-1, 2 * size - 1)
        place, factor = _reflected(place, *bounds)
    place, inside = _clipped(place, size)
    beyond = ~torch.isfinite(place) | (place > 2**31 - 2) | (place < -(2**31))
    return torch.where(beyond, torch.full_like(place, _TOO_FAR), place), factor * inside


def _clipped(place: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    inside = (place > 0) & (place < size - 1)
    # What is NaN counts as at the lower border.
    return torch.where(place > 0, place.clamp(max=size - 1), torch.zeros_like(place)), inside.to(place.dtype)


def _reflected(place: torch.Tensor, twice_low: int, twice_high: int) -> tuple[torch.Tensor, torch.Tensor]:
    if twice_low == twice_high:
        return torch.zeros_like(place), torch.zeros_like(place)
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    sign = torch.where(place - low < 0, -1.0, 1.0).to(place.dtype)
    distance = (place - low).abs()
    extra = torch.fmod(distance, span)
    even = torch.fmod((distance / span).floor(), 2) == 0
    return torch.where(even, extra + low, span - extra + low), torch.where(even, sign, -sign)


BILINEAR, NEAREST, BICUBIC = 0, 1, 2
"""How `grid_sampler` numbers its modes."""
Neighbour = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Of one axis: the place (floating point, maybe outside), its weight, and the derivative of the weight by the coordinate."""


def _neighbours(coordinate: torch.Tensor, size: int, mode: int, padding: int, align: bool) -> list[Neighbour]:
    """The places of one axis that each point of the grid reads, in ascending order."""
    place, slope = unnormalized(coordinate, size, align)
    if mode == BICUBIC:
        low = place.floor()
        weights, slopes = cubic_weights(place - low), cubic_slopes(place - low)
        places = [padded(low + step, size, padding, align)[0] for step in (-1, 0, 1, 2)]
        return [(one, weight, by * slope) for one, weight, by in zip(places, weights, slopes, strict=True)]
    place, factor = padded(place, size, padding, align)
    if mode == NEAREST:
        nearest = torch.round(place)
        return [(nearest, torch.ones_like(place), torch.zeros_like(place))]
    low = place.floor()
    return [(low, low + 1 - place, -factor * slope), (low + 1, place - low, factor * slope)]


def _corners(
    axes: list[list[Neighbour]], sizes: list[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]]:
    """Per corner the number of the place within a plane (that of no place: the plane's size), its weight, and the slopes per axis."""
    for corner in itertools.product(*axes):
        inside = torch.ones_like(corner[0][0], dtype=torch.bool)
        number = torch.zeros_like(corner[0][0], dtype=torch.int64)
        for (place, _, _), size in zip(corner, sizes, strict=True):
            within = (place >= 0) & (place < size)
            inside &= within
            number = number * size + torch.where(within, place, torch.zeros_like(place)).to(torch.int64)
        weights = [weight for _, weight, _ in corner]
        slopes = []
        for axis, (_, _, slope) in enumerate(corner):
            others = [weight for other, weight in enumerate(weights) if other != axis]
            slopes.append(math.prod(others, start=slope))
        yield (
            torch.where(inside, number, torch.full_like(number, math.prod(sizes))),
            math.prod(weights[1:], start=weights[0]),
            slopes,
        )


def _gradient(
    grad_output: torch.Tensor,
    given: torch.Tensor,
    grid: torch.Tensor,
    mode: int,
    padding: int,
    align: bool,
    mask: list[bool],
) -> tuple[torch.Tensor | None, torch.Tensor]:
    dtype = accumulation_dtype(given.dtype)
    batch, channels, *sizes = given.shape
    plane, points = math.prod(sizes), math.prod(grid.shape[1:-1])
    # The last number of the grid belongs to the first axis of the image.
    coordinates = grid.to(dtype).reshape(batch, points, len(sizes)).unbind(-1)[::-1]
    axes = [_neighbours(one, size, mode, padding, align) for one, size in zip(coordinates, sizes, strict=True)]
    rows = grad_output.to(dtype).reshape(batch, channels, points).transpose(1, 2)
    starts = torch.arange(batch, device=given.device).unsqueeze(1) * (plane + 1)
    image = (
        torch.nn.functional.pad(given.to(dtype).reshape(batch, channels, plane).transpose(1, 2), (0, 0, 0, 1))
        if mask[1]
        else None
    )
    total = rows.new_zeros(batch * (plane + 1), channels) if mask[0] else None
    by_axis = [torch.zeros_like(coordinates[0]) for _ in sizes]
    for number, weight, slopes in _corners(axes, sizes):
        keys = (number + starts).reshape(-1)
        if total is not None:
            shares = rows * weight.unsqueeze(-1)
            total += sum_by_key(keys, shares.reshape(-1, channels), len(total))
        if image is not None and mode != NEAREST:
            inside = number < plane
            read = image.reshape(-1, channels).index_select(0, keys).view(rows.shape)
            product = (read * rows).sum(-1)
            for axis, slope in enumerate(slopes):
                by_axis[axis] += torch.where(inside, product * slope, torch.zeros_like(product))
    return _image_gradient(total, given), torch.stack(by_axis[::-1], -1).view(grid.shape).to(grid.dtype)


def _image_gradient(total: torch.Tensor | None, given: torch.Tensor) -> torch.Tensor | None:
    if total is None:
        return None
    batch, channels = given.shape[:2]
    planes = total.view(batch, math.prod(given.shape[2:]) + 1, channels)[:, :-1].transpose(1, 2)
    return planes.reshape(given.shape).to(given.dtype).contiguous()


def _supports(
    grad_output: torch.Tensor,
    given: torch.Tensor,
    grid: torch.Tensor,
    mode: int,
    padding: int,
    align: bool,
    mask: list[bool],
) -> bool:
    axes = given.dim() - 2
    return (
        plain(grad_output, given, grid)
        and axes in (2, 3)
        and grid.dim() == axes + 2
        and grid.shape[-1] == axes
        and grid.shape[0] == given.shape[0]
        and list(grad_output.shape) == [*given.shape[:2], *grid.shape[1:-1]]
        and mode in ((BILINEAR, NEAREST, BICUBIC) if axes == 2 else (BILINEAR, NEAREST))
        and only_batch_empty(given, axes)
        and only_batch_empty(grid, axes)
    )


def _cudnn_gradient(given: torch.Tensor, grid: torch.Tensor, grad_output: torch.Tensor) -> tuple[Any, Any]:
    """CuDNN's kernel is for bilinear sampling with zeros around and corners aligned, and gives both gradients."""
    return _gradient(grad_output, given, grid, BILINEAR, ZEROS, True, [True, True])


def _cudnn_supports(given: torch.Tensor, grid: torch.Tensor, grad_output: torch.Tensor) -> bool:
    return given.dim() == 4 and _supports(grad_output, given, grid, BILINEAR, ZEROS, True, [True, True])


def _tensors(axes: int, device: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    given = torch.ones(1, 1, *[3] * axes, device=device)
    return torch.ones(1, 1, *[2] * axes, device=device), given, torch.zeros(1, *[2] * axes, axes, device=device)


def _example(axes: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda device: (*_tensors(axes, device), BILINEAR, ZEROS, False, [True, True])


def _cudnn_example(device: Any) -> tuple[Any, ...]:
    grad_output, given, grid = _tensors(2, device)
    return given, grid, grad_output


PATCHES = (
    *(
        Patch(
            identity=f"grid-sample{axes}d",
            what=f"grid_sample {axes}-D (gradient)",
            overloads=(f"grid_sampler_{axes}d_backward",),
            run=_gradient,
            supports=_supports,
            example=_example(axes),
        )
        for axes in (2, 3)
    ),
    Patch(
        identity="grid-sample-cudnn",
        what="grid_sample 2-D by cuDNN (gradient)",
        overloads=("cudnn_grid_sampler_backward",),
        run=_cudnn_gradient,
        supports=_cudnn_supports,
        example=_cudnn_example,
    ),
)
