"""Finds out which of the factors that were stirred on purpose made runs differ."""

from __future__ import annotations

from collections.abc import Sequence

from determinism.comparison.findings import Experiment
from determinism.comparison.result import Comparison
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.trial import BudgetSpent, Laboratory
from determinism.types import Verdict

RUNS = 3
"""A stirred factor may by chance come out alike twice: a listing of two files has two orders."""


def responsible_factors(comparison: Comparison, factors: Sequence[str], laboratory: Laboratory) -> list[str]:
    """The factors that make runs differ when they alone are stirred; all of them if none does so alone.

    Args:
        comparison: Gets the experiments.
        factors: Those that were stirred together.
        laboratory: Makes the runs.

    Raises:
        LaunchError: The user ended it.
    """
    if len(factors) == 1:
        return list(factors)
    found = []
    try:
        for name in factors:
            trial = laboratory.compare(Intervention.stir(name), runs=RUNS)
            is_known = trial.verdict is not Verdict.INCONCLUSIVE
            outcome = (
                f"Nothing can be said: {trial.failure}" if not is_known
                else f"All {trial.runs} runs were bit-identical." if trial.is_equal
                else "The runs differed."
            )  # fmt: skip
            equal = trial.is_equal if is_known else None
            comparison.experiments.append(Experiment(name, "stirred", trial.runs, equal, outcome))
            if trial.verdict is Verdict.DIFFERENT:
                found.append(name)
    except BudgetSpent:
        comparison.diagnosis = "The time for further runs was used up; --budget SECONDS gives more."
    return found or list(factors)
