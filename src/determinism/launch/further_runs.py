"""Whether runs beyond those that a verdict takes may be made to explain it."""

from __future__ import annotations

from collections.abc import Iterable

from determinism.comparison.result import RunSummary

_SECONDS_THAT_EXPLAIN_THEMSELVES = 60.0


def may_run_further(explain: bool | None, runs: Iterable[RunSummary]) -> bool:
    """Whether more runs may be made; without a word of the user, if each one so far took less than a minute.

    Args:
        explain: What the user asked for with `--explain` and `--no-explain`; None if nothing.
        runs: Those that were made.
    """
    return explain if explain is not None else max(run.seconds for run in runs) < _SECONDS_THAT_EXPLAIN_THEMSELVES
