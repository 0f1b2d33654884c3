"""What is said of the differences between what two runs ran on."""

from __future__ import annotations

from collections.abc import Iterator

from determinism.comparison.result import Comparison
from determinism.comparison.stack import EnvironmentDifference, Part, part_of, stack_differences
from determinism.report.entry import Entry, Weight
from determinism.report.wording import counted

MOST_DIFFERENCES = 6
_SETS = "instruction sets"


def stack_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say what differs between the runs' hardware, threads, libraries and settings, what decides most first."""
    found = stack_differences(comparison.environment)
    for number, difference in enumerate(found[:MOST_DIFFERENCES]):
        weight = Weight.MAIN if number < 2 else Weight.NOTE
        yield Entry(difference_text(difference, comparison), "" if number else "stack", weight, lines=2)
    if len(found) > MOST_DIFFERENCES:
        yield Entry(f"and {counted(len(found) - MOST_DIFFERENCES, 'more difference')}", weight=Weight.ITEM)


def other_differences(comparison: Comparison) -> list[EnvironmentDifference]:
    """What differs besides, and decides nothing about numbers as far as is known."""
    return [difference for difference in comparison.environment if part_of(difference[0]) is Part.OTHER]


def difference_text(difference: EnvironmentDifference, comparison: Comparison) -> str:
    """One difference with both values."""
    name, first, second = difference
    run = comparison.environment_run
    if name == _SETS and "not set" not in (first, second):
        alone = [sorted(set(one.split()) - set(other.split())) for one, other in ((first, second), (second, first))]
        parts = [
            f"only run {number} has {' '.join(sets)}" for number, sets in zip((1, run), alone, strict=True) if sets
        ]
        return f"{name}: {', '.join(parts)}"
    return f"{name} was {first or '(empty)'} in run 1, {second or '(empty)'} in run {run}"
