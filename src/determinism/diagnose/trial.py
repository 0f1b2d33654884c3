"""Runs of the program under one intervention, and what they say about a divergence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from determinism.comparison.divergence import Divergence
from determinism.comparison.findings import Experiment
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.source_notes import Unprobed
from determinism.diagnose.sources import Source, SourceSite
from determinism.types import Verdict

SEEDED_LIBRARIES = {
    "random": "seed-missing-python",
    "numpy": "seed-missing-numpy",
    "torch": "seed-missing-torch",
    "tensorflow": "seed-missing-tensorflow",
}
"""Libraries with a global generator, and what it is called if that was not seeded."""

_DOUBT = 0.1
"""How likely a difference that was not cured may pass for a cure."""
_DOUBT_OF_RACES = 0.02
_MOST_RUNS = 6


@dataclass(frozen=True)
class Trial:
    """What came of runs under one intervention."""

    intervention: Intervention
    runs: int
    verdict: Verdict
    divergence: Divergence | None
    step_seconds: float | None = None
    """Of one step; None where too few steps were made to tell."""
    failure: str | None = None
    """Why the runs could not be made or compared."""
    seedings: Mapping[str, Sequence[tuple[SourceSite, int]]] = field(default_factory=dict)
    """Per library where its generators were seeded, and how many records had been made before; of probing runs."""
    sources: Sequence[Source] = ()
    """What the program took from outside, and its values differed; of probing runs."""
    unprobed: Sequence[Unprobed] = ()
    """Modules of the user in which nothing could be noted; of probing runs."""

    @property
    def is_equal(self) -> bool:
        """Whether all runs were bit-identical."""
        return self.verdict is Verdict.SAME

    def removes(self, divergence: Divergence) -> bool:
        """Whether a divergence is gone: the runs are equal, or part from each other only later."""
        if self.is_equal:
            return True
        if self.verdict is not Verdict.DIFFERENT or self.divergence is None:
            return False
        return is_later(self.divergence, divergence)

    def experiment(self, divergence: Divergence, added: Intervention) -> Experiment:
        """What is reported of it.

        Args:
            divergence: That which was to go.
            added: What this one did that earlier ones had not found yet.
        """
        if self.failure is not None:
            outcome = f"Nothing can be said: {self.failure}"
        elif self.is_equal:
            outcome = f"All {self.runs} runs were bit-identical."
        elif self.removes(divergence):
            assert self.divergence is not None
            outcome = (
                f"The divergence at {_place(divergence)} was gone; the runs parted later, at {_place(self.divergence)}."
            )
        else:
            outcome = "The runs still differed."
        equal = None if self.verdict is Verdict.INCONCLUSIVE else self.is_equal
        return Experiment(added.name, added.action, self.runs, equal, outcome)


class Laboratory(Protocol):
    """Makes the runs of experiments."""

    def compare(self, intervention: Intervention, *, runs: int) -> Trial:
        """Run the program until two runs differ, at most so many times.

        Args:
            intervention: What is changed about each run.
            runs: How many; fewer if two of them differ.

        Raises:
            BudgetSpent: There is no time left for it.
            LaunchError: The user ended it.
        """

    def probe(self, intervention: Intervention) -> Trial:
        """Run the program twice with its sources noted.

        Args:
            intervention: What is changed about each run.

        Raises:
            BudgetSpent: There is no time left for it.
            LaunchError: The user ended it.
        """


class BudgetSpent(Exception):
    """There is no time left for another experiment."""


class Rate:
    """How often two runs of the program differ, from those that were made."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._pairs = 0
        self._different = 0

    def add(self, *, pairs: int, different: int) -> None:
        """Take note of runs with nothing changed, or of a change that made no difference."""
        self._pairs += pairs
        self._different += different

    def runs_needed(self, *, is_race: bool, tried: int = 0) -> int:
        """How many equal runs show that a cure is none by chance.

        With the rule of succession for the rate: after d of t pairs that differed it is taken as (d + 1) / (t + 2).

        Args:
            is_race: Whether what differs depends on timing, so that it may well come out alike by chance.
            tried: How many other cures were tried before: of many, one may well seem to help (Bonferroni's correction).
        """
        doubt = (_DOUBT_OF_RACES if is_race else _DOUBT) / (1 + tried)
        rate = (self._different + 1) / (self._pairs + 2)
        return min(1 + math.ceil(math.log(doubt) / math.log(1 - rate)), _MOST_RUNS)


def is_later(one: Divergence, other: Divergence) -> bool:
    """Whether a divergence comes later in the program than another one, by all that is known."""
    if one.process != other.process or one.stream is not None or other.stream is not None:
        return one.step > other.step
    return (one.step, one.record) > (other.step, other.record) and not is_alike(one, other)


def is_same_line(one: Divergence, other: Divergence) -> bool:
    """Whether two divergences are at the same op and line, in whatever step."""
    return _identity(one)[1:] == _identity(other)[1:]


def is_alike(one: Divergence, other: Divergence) -> bool:
    """Whether two divergences are at the same place of the program."""
    return one.process == other.process and _identity(one) == _identity(other)


def _identity(one: Divergence) -> tuple[object, ...]:
    site = one.site
    return one.step, one.op, one.module, None if site is None else (site.file, site.line)


def _place(one: Divergence) -> str:
    where = "" if one.site is None else f", {one.site.file.rpartition('/')[2]}:{one.site.line}"
    return f"step {one.step}, {one.op}{where}"
