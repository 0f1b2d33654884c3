"""Where `grid_sample` reads: coordinates of the grid as places of the input, with their derivatives, for each mode of padding.

The formulas, and what becomes of NaN and of coordinates beyond what an int holds, are those of PyTorch's kernels (`GridSampler.h`).
"""

from __future__ import annotations

import torch

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
