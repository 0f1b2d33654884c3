"""The chart of how far a difference spread: the share of records that differ, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from determinism.report.html.axes import Scale, Tick, linear_ticks, step_ticks

WIDTH, HEIGHT = 720, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 30
_LEAST_HEIGHT = 1.5
"""A few records of very many are to be seen too."""
_WIDEST_BAR = 28.0


class Bar(NamedTuple):
    """One step, or several together."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class SpreadChart:
    """What is drawn."""

    bars: list[Bar]
    baseline: float
    steps: list[Tick]
    shares: list[Tick]
    mark: float | None
    """Where the step of the first divergence is."""
    is_thinned: bool
    last_share: float
    """Share of the records of the last step that differ."""
    last_step: int


def spread_chart(document: dict[str, Any]) -> SpreadChart | None:
    """Lay the chart out; None if the document has no numbers for it."""
    spans = [span for span in document["divergence_by_step"] or () if span["records"]]
    if not spans:
        return None
    steps = Scale(spans[0]["step"] - 0.5, spans[-1]["last_step"] + 0.5, LEFT, WIDTH - RIGHT)
    shares = Scale(0, 1, HEIGHT - BOTTOM, TOP)
    first = document["first_divergence"]
    mark = steps.at(first["step"]) if first is not None and steps.low <= first["step"] <= steps.high else None
    inner = Scale(
        spans[0]["step"], spans[-1]["last_step"], steps.at(spans[0]["step"]), steps.at(spans[-1]["last_step"])
    )
    last = spans[-1]
    return SpreadChart(
        bars=[_bar(span, steps, shares) for span in spans if span["different"]],
        baseline=shares.at(0),
        steps=step_ticks(inner),
        shares=linear_ticks(shares, 4, "{:.0%}".format),
        mark=mark,
        is_thinned=any(span["last_step"] > span["step"] for span in spans),
        last_share=last["different"] / last["records"],
        last_step=last["last_step"],
    )


def _bar(span: dict[str, Any], steps: Scale, shares: Scale) -> Bar:
    left, right = steps.at(span["step"] - 0.5), steps.at(span["last_step"] + 0.5)
    width = right - left
    drawn = min(width * (0.82 if width > 4 else 1), _WIDEST_BAR)
    share = min(1.0, span["different"] / span["records"])
    height = max(shares.at(0) - shares.at(share), _LEAST_HEIGHT)
    which = f"step {span['step']:,}"
    if span["last_step"] > span["step"]:
        which = f"steps {span['step']:,} to {span['last_step']:,}"
    text = f"{which}: {span['different']:,} of {span['records']:,} records differ ({share:.1%})"
    return Bar(
        round((left + right - drawn) / 2, 2), round(shares.at(0) - height, 2), round(drawn, 2), round(height, 2), text
    )
