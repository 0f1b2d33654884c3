"""Looks for what makes rows independent of their batch: trials one after the other, each by what the last one showed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from determinism.comparison.batch_result import BatchKind
from determinism.comparison.result import Comparison
from determinism.diagnose.batch_trials import EVALUATION, Trial, causes_of, first_trials, joined, kernel_trials
from determinism.types import Verdict


class CureSearch:
    """Tries what may cure a comparison, and writes into it what was tried, what cured it, and what that says of the causes."""

    def __init__(self, comparison: Comparison, attempt: Callable[[Trial], Comparison | None]) -> None:
        """Take what was found and what runs the program with a trial.

        Args:
            comparison: Rows were found to depend on their batch.
            attempt: Gives the comparison of runs with a trial; None if there are none.
        """
        assert comparison.batch is not None
        self._comparison = comparison
        self._rows = comparison.batch
        self._attempt = attempt

    def run(self) -> None:
        """Try until one trial cures it."""
        cure = self._first_cure(first_trials(self._comparison))
        if cure is not None:
            self._comparison.fixes.append(replace(cure.fix, verified=True))
        self._comparison.causes = causes_of(self._comparison, cure)

    def _first_cure(self, trials: list[Trial]) -> Trial | None:
        for trial in trials:
            outcome = self._outcome(trial)
            if outcome is not None and is_cured(outcome, self._comparison):
                return trial
            if trial is EVALUATION:
                is_left = outcome is not None and _is_of_kernels(outcome)
                return self._cure_besides_evaluation() if is_left else self._cure_of_kernels()
        return None

    def _cure_of_kernels(self) -> Trial | None:
        """What cures it in the mode that the model is in, where that is a matter of kernels."""
        return self._first_cure(kernel_trials()) if _is_of_kernels(self._comparison) else None

    def _cure_besides_evaluation(self) -> Trial | None:
        """What cures it in evaluation mode; without that mode if it does so alone."""
        for kernel in kernel_trials():
            both = joined(EVALUATION, kernel)
            outcome = self._outcome(both)
            if outcome is None or not is_cured(outcome, self._comparison):
                continue
            alone = self._outcome(kernel) if _is_of_kernels(self._comparison) else None
            return kernel if alone is not None and is_cured(alone, self._comparison) else both
        return None

    def _outcome(self, trial: Trial) -> Comparison | None:
        outcome = self._attempt(trial)
        if outcome is not None:
            self._rows.tried.append(replace(trial.fix, verified=is_cured(outcome, self._comparison)))
        return outcome


def is_cured(trial: Comparison, before: Comparison) -> bool:
    """Whether rows were compared in runs with a trial, and all were equal.

    Args:
        trial: How these runs compare.
        before: How the runs without it do.
    """
    if trial.verdict is not Verdict.SAME or trial.batch is None or before.batch is None:
        return False
    return trial.batch.rows_matched > 0 and trial.batch.places > 0


def _is_of_kernels(comparison: Comparison) -> bool:
    rows = comparison.batch
    return rows is not None and rows.difference is not None and rows.difference.kind is BatchKind.OP
