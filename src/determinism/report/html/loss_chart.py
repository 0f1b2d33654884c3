"""The chart of the losses of both runs, and below it that of their difference."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from determinism.report.html.axes import Scale, Tick, linear_ticks, power_ticks, step_ticks, value_scale

WIDTH = 720
LEFT, RIGHT = 64, 12
CURVES_TOP, CURVES_BOTTOM = 14, 208
DIFFERENCE_TOP, DIFFERENCE_BOTTOM = 248, 352
HEIGHT = 382
_ZERO_ROOM = 16
"""Between the lowest power of ten and the line on which losses are equal."""
_MOST_DOTS = 60


class Dot(NamedTuple):
    """One step of a curve."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class LossChart:
    """What is drawn."""

    curves: tuple[list[str], list[str]]
    """Of each run the paths; a loss that is not known interrupts it."""
    dots: list[Dot]
    values: list[Tick]
    steps: list[Tick]
    is_logarithmic: bool
    mark: float | None
    """Where the step of the first divergence is."""
    difference: list[str]
    difference_ticks: list[Tick]
    zero: float
    largest: float
    """The largest difference."""
    largest_at: int
    first_at: int | None
    """The first step with unequal losses."""
    num_steps: int


def loss_chart(document: dict[str, Any]) -> LossChart | None:
    """Lay the chart out; None if the document has no losses."""
    losses = [loss for loss in document["losses"] or () if loss["first"] is not None or loss["second"] is not None]
    if not losses:
        return None
    known = [float(loss[run]) for loss in losses for run in ("first", "second") if loss[run] is not None]
    steps = Scale(losses[0]["step"], losses[-1]["step"], LEFT + 6, WIDTH - RIGHT - 6)
    values = value_scale(known, CURVES_BOTTOM - 6, CURVES_TOP + 6)
    gaps = [(loss["step"], _gap(loss)) for loss in losses]
    unequal = [(step, gap) for step, gap in gaps if gap]
    largest_at, largest = max(unequal, key=lambda one: one[1] or 0.0, default=(0, 0.0))
    first = document["first_divergence"]
    mark = steps.at(first["step"]) if first is not None and steps.low <= first["step"] <= steps.high else None
    ticks = power_ticks(values) if values.is_logarithmic else []
    lines, gap_ticks = _difference(gaps, steps)
    return LossChart(
        curves=(_curve(losses, "first", steps, values), _curve(losses, "second", steps, values)),
        dots=_dots(losses, steps, values),
        values=ticks if len(ticks) > 1 else linear_ticks(values, 4),
        steps=step_ticks(steps),
        is_logarithmic=values.is_logarithmic,
        mark=mark,
        difference=lines,
        difference_ticks=gap_ticks,
        zero=DIFFERENCE_BOTTOM,
        largest=largest or 0.0,
        largest_at=largest_at,
        first_at=unequal[0][0] if unequal else None,
        num_steps=len(losses),
    )


def _gap(loss: dict[str, Any]) -> float | None:
    """How far apart the losses of a step are; None where one is not known or the distance is beyond all floats."""
    if loss["first"] is None or loss["second"] is None:
        return None
    gap = abs(float(loss["first"]) - float(loss["second"]))
    return gap if math.isfinite(gap) else None


def _curve(losses: Sequence[dict[str, Any]], run: str, steps: Scale, values: Scale) -> list[str]:
    points = [
        None if loss[run] is None else (steps.at(loss["step"]), values.at(float(loss[run]))) for loss in losses
    ]  # fmt: skip
    return _paths(points)


def _dots(losses: Sequence[dict[str, Any]], steps: Scale, values: Scale) -> list[Dot]:
    if len(losses) > _MOST_DOTS:
        return []
    found = []
    for loss in losses:
        drawn = loss["second"] if loss["second"] is not None else loss["first"]
        texts = ["not known" if loss[run] is None else repr(float(loss[run])) for run in ("first", "second")]
        text = f"step {loss['step']:,}: {texts[0]} and {texts[1]}"
        found.append(Dot(steps.at(loss["step"]), values.at(float(drawn)), text))
    return found


def _difference(gaps: Sequence[tuple[int, float | None]], steps: Scale) -> tuple[list[str], list[Tick]]:
    sizes = [gap for _, gap in gaps if gap]
    if not sizes:
        points = [None if gap is None else (steps.at(step), float(DIFFERENCE_BOTTOM)) for step, gap in gaps]
        return _paths(points), []
    low = 10.0 ** max(math.floor(math.log10(min(sizes))), -307)
    high = min(max(max(sizes), low * 10), sys.float_info.max)
    scale = Scale(low, high, DIFFERENCE_BOTTOM - _ZERO_ROOM, DIFFERENCE_TOP + 4, is_logarithmic=True)
    points = [
        None
        if gap is None
        else (steps.at(step), scale.at(max(gap, low)) if gap else float(DIFFERENCE_BOTTOM))
        for step, gap in gaps
    ]  # fmt: skip
    return _paths(points), power_ticks(scale, 4)


def _paths(points: Sequence[tuple[float, float] | None]) -> list[str]:
    """Polylines through the points; a lone one becomes a short line, so that it shows."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    drawn = [[(one[0][0] - 2, one[0][1]), (one[0][0] + 2, one[0][1])] if len(one) == 1 else one for one in runs if one]
    return [" ".join(f"{x:g},{y:g}" for x, y in one) for one in drawn]
