"""The losses of two runs as numbers, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable

from determinism.comparison.course import MOST_ENTRIES, Loss
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import Meaning


def losses(pairs: Iterable[tuple[ProcessTrace, ProcessTrace]]) -> list[Loss] | None:
    """The loss of each step in both runs, of the first process that has any; None if none has.

    Args:
        pairs: The same processes of both runs, the one that says most first.
    """
    for pair in pairs:
        first, second = (_by_step(process) for process in pair)
        found = [Loss(step, first.get(step), second.get(step)) for step in sorted(first.keys() | second.keys())]
        if any(loss.first is not None or loss.second is not None for loss in found):
            return _thinned(found)
    return None


def _by_step(process: ProcessTrace) -> dict[int, float | None]:
    """What the first backward of each step was started from; None where that is not known, or is no number."""
    numbers = process.numbers
    read = {
        (int(row["producer"]), int(row["output"])): float(row["value"])
        for row in numbers[(numbers["meaning"] == Meaning.READ) & (numbers["producer"] >= 0)]
    }
    found: dict[int, float | None] = {}
    for row in numbers[numbers["meaning"] != Meaning.READ]:
        step = int(row["step"])
        if step in found:
            continue
        known = float(row["value"])
        value = known if row["meaning"] == Meaning.LOSS else read.get((int(row["producer"]), int(row["output"])))
        found[step] = value if value is not None and math.isfinite(value) else None
    return found


def _thinned(found: list[Loss]) -> list[Loss]:
    """Of very many steps those whose losses are furthest apart among their neighbours, and the first and the last."""
    if len(found) <= MOST_ENTRIES:
        return found
    width = math.ceil(len(found) / (MOST_ENTRIES - 2))
    inner = [max(found[start : start + width], key=_gap) for start in range(0, len(found), width)]
    return sorted({*inner, found[0], found[-1]})


def _gap(loss: Loss) -> float:
    return -1.0 if loss.first is None or loss.second is None else abs(loss.first - loss.second)
