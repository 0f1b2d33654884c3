"""What may make rows independent of their batch and can be set from outside: tried one after the other, in runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from determinism.comparison.batch_result import BatchKind
from determinism.comparison.findings import Cause, Experiment, Fix, Status
from determinism.comparison.result import Comparison
from determinism.types import Verdict

_CPU_FACTS = Path("/proc/cpuinfo")
_MKL = "MKL_CBWR"
"""Conditional numerical reproducibility of oneMKL; its documentation says that `STRICT` makes products of matrices independent of their
number of rows, from AVX2 on (oneMKL developer guide, "Reproducibility Conditions")."""


@dataclass(frozen=True)
class Trial:
    """One thing to set."""

    fix: Fix
    settings: tuple[str, ...] = ()
    """Names of what the recorder sets inside."""
    cause: str = "kernel"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables to start the program with."""
        return dict(self.fix.environment or ())


def trials_for(comparison: Comparison, *, within_process: bool = False) -> list[Trial]:
    """What is worth a try, the likeliest first.

    Args:
        comparison: Rows were found to depend on their batch.
        within_process: Only what can be set while a process runs.
    """
    rows = comparison.batch
    assert rows is not None
    kind = None if rows.difference is None else rows.difference.kind
    if kind is BatchKind.PADDING:
        return []
    is_training = bool(rows.training) or (rows.difference is not None and rows.difference.is_training)
    found = [_EVALUATION] if is_training else []
    if kind in (BatchKind.OP, None):
        found += _kernels()
    return [trial for trial in found if not (within_process and trial.environment)]


def causes_of(comparison: Comparison, verified: Trial | None) -> list[Cause]:
    """Why rows depend on their batch, as far as it is known.

    Args:
        comparison: What was found, with what was tried.
        verified: What cured it; None if nothing did.
    """
    rows = comparison.batch
    assert rows is not None
    kind = None if rows.difference is None else rows.difference.kind
    names = ", ".join(f"{one.module or 'the outermost module'} ({one.name})" for one in rows.training[:4])
    tried = tuple(_experiment(one, len(rows.sizes)) for one in rows.tried)
    found = []
    if rows.training or (verified is not None and verified.cause == "training-mode"):
        is_proven = verified is not None and verified.cause == "training-mode"
        explains = kind in (BatchKind.MIXING, BatchKind.RNG, None)
        status = Status.CONFIRMED if is_proven else Status.LIKELY if explains else Status.POSSIBLE
        evidence = (f"In training mode and computing otherwise because of it: {names}",) if names else ()
        found.append(Cause("training-mode", _TITLES["training-mode"], status, evidence, tried, ()))
    if kind is not None and not any(one.status is Status.CONFIRMED for one in found):
        identifier = {"op": "kernel", "rng": "random", "mixing": "mixing", "padding": "padding"}[kind]
        is_proven = verified is not None and verified.cause == identifier
        status = Status.CONFIRMED if is_proven else Status.LIKELY
        found.append(Cause(identifier, _TITLES[identifier], status, (), tried, ()))
    return found


def _experiment(tried: Fix, sizes: int) -> Experiment:
    outcome = "Equal rows gave equal results." if tried.verified else "Rows still depended on their batch."
    return Experiment(tried.title, "fixed", sizes, tried.verified, outcome)


def is_cured(trial: Comparison, before: Comparison) -> bool:
    """Whether rows were compared in runs with a trial, and all were equal.

    Args:
        trial: How these runs compare.
        before: How the runs without it do.
    """
    if trial.verdict is not Verdict.SAME or trial.batch is None or before.batch is None:
        return False
    return trial.batch.rows_matched > 0 and trial.batch.places > 0


def with_outcome(trial: Trial, *, verified: bool) -> Fix:
    """What was tried, with how it came out."""
    return replace(trial.fix, verified=verified)


def _kernels() -> list[Trial]:
    flags = _flags()
    branches = [name for name, flag in (("AVX512", "avx512f"), ("AVX2", "avx2")) if flag in flags]
    strict = [
        Trial(
            Fix(f"mkl-{name.lower()}-strict", f"oneMKL keeps to one kernel ({name})", None, ((_MKL, f"{name},STRICT"),))
        )
        for name in branches
    ]
    no_mkldnn = Trial(
        Fix("mkldnn-off", "Without oneDNN, on the CPU", "torch.backends.mkldnn.enabled = False"), ("mkldnn-off",)
    )
    one_thread = Trial(Fix("one-thread", "One thread", None, (("OMP_NUM_THREADS", "1"), ("MKL_NUM_THREADS", "1"))))
    both = [
        Trial(
            Fix(
                f"mkldnn-off-{one.fix.identifier}",
                f"{one.fix.title}, and without oneDNN",
                no_mkldnn.fix.code,
                one.fix.environment,
            ),
            no_mkldnn.settings,
        )
        for one in strict
    ]
    compatible = Trial(Fix("mkl-compatible", "oneMKL keeps to its oldest kernel", None, ((_MKL, "COMPATIBLE"),)))
    return [*strict, no_mkldnn, one_thread, *both, compatible]


def _flags() -> set[str]:
    """What the processor can do."""
    try:
        text = _CPU_FACTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return set(line.partition(":")[2].split())


_EVALUATION = Trial(
    Fix("evaluation-mode", "The model in evaluation mode", "model.eval()"), ("evaluation",), "training-mode"
)
_TITLES = {
    "training-mode": "The model was left in training mode",
    "kernel": "The library computes a row in another way in batches of another size",
    "mixing": "An op takes the rows of a batch together",
    "random": "Random numbers are drawn for each batch",
    "padding": "Batches are padded to their longest row",
}
