"""Gradients of interpolation, of reflection and replication padding, and of `grid_sample`.

Interpolation (linear, bilinear, trilinear, bicubic, with antialiasing) is one map per axis, so its gradient is too. For padding, the gradient
along one axis is that of the inner part plus what each border contributes: one mirrored slice per side, or the sum of the slice.
The gradient of the input of `grid_sample` is a sum per place, because several points of the grid may read it; the gradient of the grid is
gathered. Stock GPU kernels, including cuDNN's, add all of these with atomics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from determinism.frameworks.torch.patches.ordered_sums import (
    COMPLEX,
    FLOATING,
    Shares,
    Taps,
    accumulation_dtype,
    cached_taps,
    cubic,
    cubic_slopes,
    cubic_weights,
    gather_shares,
    linear,
    only_batch_empty,
    plain,
    scale_of,
    suggested_format,
    sum_by_key,
)
from determinism.frameworks.torch.patches.patch import Patch

# The maps along one axis of interpolation with antialiasing: filters whose width grows with the downscaling factor.

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
"""By name, the filter and its width in inputs without downscaling."""


@cached_taps
def antialiased(
    name: str, input_size: int, output_size: int, align_corners: bool, scale: float | None, dtype: torch.dtype
) -> tuple[Shares, int]:
    """Map each output to a weighted mean over a window; the weights are those of the filter, divided by their sum."""
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


def _interpolation_gradient(axis_taps: AxisTaps, keeps_format: bool) -> Callable[..., torch.Tensor]:
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


def _interpolation_supports(
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


def _interpolation_patch(identity: str, what: str, op: str, axis_taps: AxisTaps, axes: int) -> Patch:
    def example(device: Any) -> tuple[Any, ...]:
        grad = torch.arange(5.0**axes, device=device).view(1, 1, *[5] * axes)
        return grad, [5] * axes, [1, 1, *[3] * axes], False

    return Patch(
        identity=identity,
        what=f"{what} (gradient)",
        overloads=(op, f"{op}.grad_input"),
        run=_interpolation_gradient(axis_taps, keeps_format="bicubic" not in identity),
        supports=_interpolation_supports,
        example=example,
    )


AlongAxis = Callable[[torch.Tensor, int, int, int, int], torch.Tensor]


def _inner(values: torch.Tensor, axis: int, size: int, before: int, after: int) -> torch.Tensor:
    """Return the part over the input itself; zero where negative padding cropped it."""
    kept = values.narrow(axis, max(before, 0), size + min(before, 0) + min(after, 0))
    if before >= 0 and after >= 0:
        return kept.clone(memory_format=torch.contiguous_format)
    shape = list(values.shape)
    shape[axis] = size
    result = values.new_zeros(shape)
    result.narrow(axis, max(-before, 0), kept.shape[axis]).copy_(kept)
    return result


def _reflection(values: torch.Tensor, axis: int, size: int, before: int, after: int) -> torch.Tensor:
    result = _inner(values, axis, size, before, after)
    length = values.shape[axis]
    if before > 0:
        result.narrow(axis, 1, before).add_(values.narrow(axis, 0, before).flip(axis))
    if after > 0:
        result.narrow(axis, size - 1 - after, after).add_(values.narrow(axis, length - after, after).flip(axis))
    return result


def _replication(values: torch.Tensor, axis: int, size: int, before: int, after: int) -> torch.Tensor:
    result = _inner(values, axis, size, before, after)
    length = values.shape[axis]
    if before > 0:
        result.narrow(axis, 0, 1).add_(values.narrow(axis, 0, before).sum(axis, keepdim=True))
    if after > 0:
        result.narrow(axis, size - 1, 1).add_(values.narrow(axis, length - after, after).sum(axis, keepdim=True))
    return result


def _padding_gradient(along_axis: AlongAxis, axes: int) -> Callable[..., torch.Tensor]:
    def gradient(grad_output: torch.Tensor, given: torch.Tensor, padding: list[int]) -> torch.Tensor:
        values = grad_output.to(accumulation_dtype(given.dtype))
        for number in range(axes):
            axis = values.dim() - 1 - number
            before, after = padding[2 * number : 2 * number + 2]
            values = along_axis(values, axis, given.shape[axis], before, after)
        # CPU kernels keep the memory format of the input, GPU kernels do not.
        on_cpu = given.device.type == "cpu" and axes > 1
        memory_format = suggested_format(given) if on_cpu else torch.contiguous_format
        return values.to(given.dtype).contiguous(memory_format=memory_format)

    return gradient


def _padding_supports(axes: int, reflect: bool) -> Callable[..., bool]:
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


def _padding_patch(kind: str, along_axis: AlongAxis, axes: int) -> Patch:
    op = f"{kind}_pad{axes}d_backward"
    return Patch(
        identity=f"{kind}-pad{axes}d",
        what=f"{kind}_pad{axes}d (gradient)",
        overloads=(op, f"{op}.grad_input"),
        run=_padding_gradient(along_axis, axes),
        supports=_padding_supports(axes, kind == "reflection"),
        example=lambda device: (
            *(torch.ones(1, *[size] * axes, device=device) for size in (5, 3)),
            [1] * (2 * axes),
        ),
    )


# Where `grid_sample` reads: converts grid coordinates to places in the input, with derivatives, for each padding mode.
#
# The formulas, and the treatment of NaN and of coordinates beyond the range of an int, are those of PyTorch's kernels
# (`GridSampler.h`).

ZEROS, BORDER, REFLECTION = 0, 1, 2
"""The padding modes, as numbered by `grid_sampler`."""
_TOO_FAR = -100.0
"""The kernels' replacement for a coordinate that does not fit into an int."""


def unnormalized(coordinate: torch.Tensor, size: int, align_corners: bool) -> tuple[torch.Tensor, float]:
    """Convert coordinates in [-1, 1] to places on an axis; also returns the derivative."""
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1), (size - 1) / 2
    return ((coordinate + 1) * size - 1) / 2, size / 2


def padded(place: torch.Tensor, size: int, mode: int, align_corners: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Move a place according to the padding mode; also returns the factor of the derivative."""
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
    # NaN counts as being at the lower border.
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
"""The interpolation modes, as numbered by `grid_sampler`."""
Neighbour = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""On one axis: the place (floating point, maybe outside), its weight, and the weight's derivative by the coordinate."""


def _neighbours(coordinate: torch.Tensor, size: int, mode: int, padding: int, align: bool) -> list[Neighbour]:
    """Find the places on one axis that each point of the grid reads, in ascending order."""
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
    """Yield, per corner, its number within a plane (outside: the plane's size), its weight, and its slopes per axis."""
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


def _grid_gradient(
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
    # The last coordinate in the grid belongs to the first axis of the image.
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


def _grid_supports(
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
    """Compute both gradients like cuDNN's kernel: for bilinear sampling with zero padding and aligned corners."""
    return _grid_gradient(grad_output, given, grid, BILINEAR, ZEROS, True, [True, True])


def _cudnn_supports(given: torch.Tensor, grid: torch.Tensor, grad_output: torch.Tensor) -> bool:
    return given.dim() == 4 and _grid_supports(grad_output, given, grid, BILINEAR, ZEROS, True, [True, True])


def _grid_tensors(axes: int, device: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    given = torch.ones(1, 1, *[3] * axes, device=device)
    return torch.ones(1, 1, *[2] * axes, device=device), given, torch.zeros(1, *[2] * axes, axes, device=device)


def _grid_example(axes: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda device: (*_grid_tensors(axes, device), BILINEAR, ZEROS, False, [True, True])


def _cudnn_example(device: Any) -> tuple[Any, ...]:
    grad_output, given, grid = _grid_tensors(2, device)
    return given, grid, grad_output


PATCHES = (
    _interpolation_patch("interpolate-linear", "interpolate linear", "upsample_linear1d_backward", linear, 1),
    _interpolation_patch("interpolate-bilinear", "interpolate bilinear", "upsample_bilinear2d_backward", linear, 2),
    _interpolation_patch("interpolate-trilinear", "interpolate trilinear", "upsample_trilinear3d_backward", linear, 3),
    _interpolation_patch("interpolate-bicubic", "interpolate bicubic", "upsample_bicubic2d_backward", cubic, 2),
    _interpolation_patch(
        "interpolate-bilinear-antialias",
        "interpolate bilinear with antialias",
        "_upsample_bilinear2d_aa_backward",
        _antialiased("linear"),
        2,
    ),
    _interpolation_patch(
        "interpolate-bicubic-antialias",
        "interpolate bicubic with antialias",
        "_upsample_bicubic2d_aa_backward",
        _antialiased("cubic"),
        2,
    ),
    _interpolation_patch(
        "interpolate-lanczos",
        "interpolate lanczos",
        "_upsample_lanczos2d_aa_backward",
        _antialiased("lanczos"),
        2,
    ),
    *(_padding_patch("reflection", _reflection, axes) for axes in (1, 2, 3)),
    *(_padding_patch("replication", _replication, axes) for axes in (1, 2, 3)),
    *(
        Patch(
            identity=f"grid-sample{axes}d",
            what=f"grid_sample {axes}-D (gradient)",
            overloads=(f"grid_sampler_{axes}d_backward",),
            run=_grid_gradient,
            supports=_grid_supports,
            example=_grid_example(axes),
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
