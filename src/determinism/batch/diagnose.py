"""Tries, one after the other, settings from outside that may make rows independent of their batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from determinism.comparison.divergence import Cause, Experiment, Fix, Status
from determinism.comparison.result import BatchKind, Comparison
from determinism.op_semantics import framework_of
from determinism.types import Verdict

_CPU_FACTS = Path("/proc/cpuinfo")
_MKL = "MKL_CBWR"
"""Conditional numerical reproducibility of oneMKL; its documentation says that `STRICT` makes matrix products independent
of the number of rows, from AVX2 on (oneMKL developer guide, "Reproducibility Conditions")."""


_TRAINING, _KERNEL = "training-mode", "kernel"


@dataclass(frozen=True)
class Trial:
    """One setting, or several, to try."""

    fix: Fix
    settings: tuple[str, ...] = ()
    """Names of the settings that the recorder makes within the program."""
    causes: tuple[str, ...] = (_KERNEL,)
    """The causes that it removes."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables to start the program with."""
        return dict(self.fix.environment or ())


def first_trials(comparison: Comparison) -> list[Trial]:
    """The trials to begin with, the most promising first.

    Args:
        comparison: A comparison that found rows to depend on their batch.
    """
    rows = comparison.batch
    assert rows is not None
    kind = None if rows.difference is None else rows.difference.kind
    if kind is BatchKind.PADDING:
        return []
    if rows.training or (rows.difference is not None and rows.difference.is_training):
        return [EVALUATION]
    return _kernel_trials_for(comparison) if kind in (BatchKind.OP, None) else []


def _kernel_trials_for(comparison: Comparison) -> list[Trial]:
    """Trials that hold the framework's libraries to one kernel; XLA compiles one for each size, and has no such setting."""
    first = comparison.first_divergence
    is_of_jax = first is not None and framework_of(first.op) == "jax"
    return [] if is_of_jax else kernel_trials()


def joined(first: Trial, second: Trial) -> Trial:
    """Both trials at once."""
    return Trial(
        Fix(
            f"{first.fix.identifier}-{second.fix.identifier}",
            f"{first.fix.title}, and {second.fix.title[0].lower()}{second.fix.title[1:]}",
            "\n".join(one.fix.code for one in (first, second) if one.fix.code is not None) or None,
            (*(first.fix.environment or ()), *(second.fix.environment or ())) or None,
        ),
        (*first.settings, *second.settings),
        (*first.causes, *second.causes),
    )


def causes_of(comparison: Comparison, verified: Trial | None) -> list[Cause]:
    """The known causes of rows that depend on their batch."""
    rows = comparison.batch
    assert rows is not None
    kind = None if rows.difference is None else rows.difference.kind
    names = ", ".join(f"{one.module or 'the outermost module'} ({one.name})" for one in rows.training[:4])
    tried = tuple(_experiment(one, len(rows.sizes)) for one in rows.tried)
    found = []
    proven = () if verified is None else verified.causes
    if rows.training or _TRAINING in proven:
        explains = kind in (BatchKind.MIXING, BatchKind.RNG, None)
        status = Status.CONFIRMED if _TRAINING in proven else Status.LIKELY if explains else Status.POSSIBLE
        evidence = (f"Modules in training mode, in which they compute differently: {names}",) if names else ()
        found.append(Cause(_TRAINING, _TITLES[_TRAINING], status, evidence, tried, ()))
    if _KERNEL in proven:
        found.append(Cause(_KERNEL, _TITLES[_KERNEL], Status.CONFIRMED, (), tried, ()))
    elif kind is not None and not any(one.status is Status.CONFIRMED for one in found):
        identifier = {"op": _KERNEL, "rng": "random", "mixing": "mixing", "padding": "padding"}[kind]
        found.append(Cause(identifier, _TITLES[identifier], Status.LIKELY, (), tried, ()))
    return found


def _experiment(tried: Fix, sizes: int) -> Experiment:
    outcome = "Equal rows gave equal results." if tried.verified else "Rows still depended on their batch."
    return Experiment(tried.title, "fixed", sizes, tried.verified, outcome)


def kernel_trials() -> list[Trial]:
    """Trials that hold libraries to one kernel, the most promising first."""
    flags = _flags()
    branches = [name for name, flag in (("AVX512", "avx512f"), ("AVX2", "avx2")) if flag in flags]
    strict = [
        Trial(
            Fix(
                f"mkl-{name.lower()}-strict",
                f"oneMKL always uses one kernel ({name})",
                None,
                ((_MKL, f"{name},STRICT"),),
            )
        )
        for name in branches
    ]
    no_mkldnn = Trial(
        Fix("mkldnn-off", "Without oneDNN, on the CPU", "torch.backends.mkldnn.enabled = False"), ("mkldnn-off",)
    )
    one_thread = Trial(Fix("one-thread", "One thread", None, (("OMP_NUM_THREADS", "1"), ("MKL_NUM_THREADS", "1"))))
    both = [joined(no_mkldnn, one) for one in strict]
    compatible = Trial(Fix("mkl-compatible", "oneMKL always uses its oldest kernel", None, ((_MKL, "COMPATIBLE"),)))
    return [*strict, no_mkldnn, one_thread, *both, compatible]


def _flags() -> set[str]:
    """The features of the processor."""
    try:
        text = _CPU_FACTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return set(line.partition(":")[2].split())


EVALUATION = Trial(
    Fix("evaluation-mode", "The model in evaluation mode", "model.eval()"), ("evaluation",), (_TRAINING,)
)
_TITLES = {
    _TRAINING: "The model was left in training mode",
    _KERNEL: "The library computes a row differently in batches of a different size",
    "mixing": "An op combines the rows of a batch",
    "random": "Random numbers are drawn for each batch",
    "padding": "Batches are padded to their longest row",
}


# Looks for settings that make rows independent of their batch: one trial after the other, each chosen by the last outcome.


class CureSearch:
    """Tries possible cures; `comparison` has the trials, the one that cured it, and the causes that follow from it."""

    def __init__(self, comparison: Comparison, attempt: Callable[[Trial], Comparison | None]) -> None:
        """Take the comparison, and the function that runs the program with a trial.

        Args:
            comparison: A comparison that found rows to depend on their batch.
            attempt: Returns the comparison of runs with a trial; None if there are none.
        """
        assert comparison.batch is not None
        self.comparison = comparison
        """The comparison, with the findings so far."""
        self._attempt = attempt

    def run(self) -> None:
        """Try until one trial cures it."""
        cure = self._first_cure(first_trials(self.comparison))
        fixes = () if cure is None else (replace(cure.fix, verified=True),)
        diagnosis = replace(self.comparison.diagnosis, causes=tuple(causes_of(self.comparison, cure)), fixes=fixes)
        self.comparison = replace(self.comparison, diagnosis=diagnosis)

    def _first_cure(self, trials: list[Trial]) -> Trial | None:
        for trial in trials:
            outcome = self._outcome(trial)
            if outcome is not None and is_cured(outcome, self.comparison):
                return trial
            if trial is EVALUATION:
                is_left = outcome is not None and _is_of_kernels(outcome)
                return self._cure_besides_evaluation() if is_left else self._cure_of_kernels()
        return None

    def _cure_of_kernels(self) -> Trial | None:
        """The trial that cures it in the model's current mode, if kernels make the difference there."""
        return self._first_cure(_kernel_trials_for(self.comparison)) if _is_of_kernels(self.comparison) else None

    def _cure_besides_evaluation(self) -> Trial | None:
        """The trial that cures it in evaluation mode; without that mode if it suffices alone."""
        for kernel in _kernel_trials_for(self.comparison):
            both = joined(EVALUATION, kernel)
            outcome = self._outcome(both)
            if outcome is None or not is_cured(outcome, self.comparison):
                continue
            alone = self._outcome(kernel) if _is_of_kernels(self.comparison) else None
            return kernel if alone is not None and is_cured(alone, self.comparison) else both
        return None

    def _outcome(self, trial: Trial) -> Comparison | None:
        outcome = self._attempt(trial)
        if outcome is not None:
            tried = replace(trial.fix, verified=is_cured(outcome, self.comparison))
            rows = self.comparison.batch
            assert rows is not None
            self.comparison = replace(self.comparison, batch=replace(rows, tried=(*rows.tried, tried)))
        return outcome


def is_cured(trial: Comparison, before: Comparison) -> bool:
    """Whether rows were compared in runs with a trial, and all were equal, unlike before."""
    if trial.verdict is not Verdict.SAME or trial.batch is None or before.batch is None:
        return False
    return trial.batch.rows_matched > 0 and trial.batch.places > 0


def _is_of_kernels(comparison: Comparison) -> bool:
    rows = comparison.batch
    return rows is not None and rows.difference is not None and rows.difference.kind is BatchKind.OP
