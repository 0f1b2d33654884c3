"""How two runs went on, step by step: how many records differed, and what the losses were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MOST_ENTRIES = 1000
"""Of steps in a report; more cannot be told apart in a picture."""


class StepSpan(NamedTuple):
    """One step, or several that follow each other where a run has very many."""

    step: int
    last_step: int
    records: int
    """How many records were compared."""
    different: int
    """How many of them differ, or are in one run only."""


class Loss(NamedTuple):
    """The loss of one step in both runs."""

    step: int
    first: float | None
    """None where it is not known, or is no number."""
    second: float | None


@dataclass(frozen=True)
class Course:
    """How two runs went on."""

    runs: tuple[int, int]
    """Which runs these are, counted from 1."""
    steps: list[StepSpan] | None = None
    """None where steps were not counted, as in runs that are equal."""
    losses: list[Loss] | None = None
    """None where no loss is known."""
