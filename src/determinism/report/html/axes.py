"""Scales and ticks of charts: where a number lies in a drawing, and which numbers stand beside an axis."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_NICE = (1, 2, 5, 10)


class Tick(NamedTuple):
    """A number beside an axis."""

    at: float
    """Where it stands in the drawing."""
    text: str


@dataclass(frozen=True)
class Scale:
    """Numbers from `low` to `high`, drawn between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        """Where a number lies."""
        low, high, value = (math.log10(v) if self.is_logarithmic else float(v) for v in (self.low, self.high, value))
        # Halved first: the distance of the largest floats is beyond all of them.
        share = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 2)


def linear_ticks(scale: Scale, most: int = 5, text: Callable[[float], str] = "{:.6g}".format) -> list[Tick]:
    """Round numbers on a linear scale.

    Args:
        scale: The scale.
        most: About how many.
        text: Writes a number.
    """
    span = scale.high / most - scale.low / most
    power = 10.0 ** math.floor(math.log10(span)) if span > 0 else 0.0
    if not power:
        return [Tick(scale.at(scale.low), text(scale.low))]
    distance = next(nice * power for nice in _NICE if nice * power >= span * 0.999)
    first, last = math.ceil(scale.low / distance - 1e-9), math.floor(scale.high / distance + 1e-9)
    return [Tick(scale.at(number * distance), text(number * distance)) for number in range(first, last + 1)]


def step_ticks(scale: Scale, most: int = 8) -> list[Tick]:
    """Whole numbers on a linear scale."""
    if scale.high - scale.low < most:
        return [Tick(scale.at(step), f"{step:,}") for step in range(int(scale.low), int(scale.high) + 1)]
    return linear_ticks(scale, most, lambda step: f"{round(step):,}")


def power_ticks(scale: Scale, most: int = 5) -> list[Tick]:
    """Powers of ten on a logarithmic scale."""
    first, last = math.ceil(math.log10(scale.low) - 1e-9), math.floor(math.log10(scale.high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / most))
    return [Tick(scale.at(10.0**power), f"1e{power}") for power in range(first, last + 1, every)]


def value_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale that all numbers fit on: logarithmic where they go over orders of magnitude."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 100:
        return Scale(low, high, start, end, is_logarithmic=True)
    if low == high:
        room = abs(low) / 10 or 1.0
        return _linear(low - room, high + room, start, end)
    room = high / 20 - low / 20
    return _linear(low - room, high + room, start, end)


def _linear(low: float, high: float, start: float, end: float) -> Scale:
    most = sys.float_info.max
    return Scale(max(low, -most), min(high, most), start, end)
