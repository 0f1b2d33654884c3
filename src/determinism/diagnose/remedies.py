"""The fixes for causes that were found: what to write, and whether runs with it were equal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import PurePath

from determinism.comparison.findings import Fix
from determinism.diagnose.catalog import causes
from determinism.diagnose.code_fixes import code_fix
from determinism.diagnose.hypothesis import Hypothesis
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.line_uses import possible_uses
from determinism.diagnose.seed_fixes import keeps_other_parts
from determinism.diagnose.trial import Trial
from determinism.probes.code_change import CodeChange
from determinism.probes.request import FixedSource

_SEEDED = ("unseeded-generator", "seed-value")
_MADE_SEEDS = ("clock", "process-id", "entropy", "machine-state", "file-time")
"""Sources of which a line is changed only where a seed is made of them."""
"""Sources that a constant seed takes away."""
_Remedy = tuple[str, str | None, tuple[tuple[str, str], ...] | None]
_BY_FACTOR: dict[str, _Remedy] = {
    "hash-seed": ("Fix the salt of hashes", None, (("PYTHONHASHSEED", "0"),)),
    "python-seed": ("Seed Python's generator at the start of the program", "random.seed(0)", None),
    "numpy-seed": ("Seed NumPy's global generator at the start of the program", "numpy.random.seed(0)", None),
    "torch-seed": ("Seed PyTorch at the start of the program", "torch.manual_seed(0)", None),
    "tensorflow-seed": (
        "Seed Python, NumPy and TensorFlow at the start of the program",
        "tf.keras.utils.set_random_seed(0)",
        None,
    ),
    "pipeline-order": (
        "Take the elements of parallel stages in the order of the data",
        "dataset.map(..., num_parallel_calls=..., deterministic=True)",
        None,
    ),
    "pipeline-parallel": (
        "Make one element after the other, or draw by the element with tf.random.stateless_uniform and the like",
        "dataset.map(..., num_parallel_calls=None)",
        None,
    ),
    "deterministic-ops": (
        "Use TensorFlow's deterministic ops, throughout the program",
        "tf.config.experimental.enable_op_determinism()",
        None,
    ),
    "patches": (
        "Replace the op by a deterministic one; or, without changing the program, start it with `determinism run --patch`",
        "import determinism\n\ndeterminism.patch()",
        None,
    ),
    "tensorflow-threads": (
        "Compute with one thread",
        "tf.config.threading.set_intra_op_parallelism_threads(1)\n"
        "tf.config.threading.set_inter_op_parallelism_threads(1)",
        None,
    ),
    "threads": ("Compute with one thread", "torch.set_num_threads(1)", None),
    "deterministic-algorithms": (
        "Use PyTorch's deterministic algorithms, throughout the program",
        "torch.use_deterministic_algorithms(True, warn_only=True)\n"
        "torch.utils.deterministic.fill_uninitialized_memory = False",
        None,
    ),
    "workers": ("Load data without workers", "DataLoader(..., num_workers=0)", None),
    "memory": (
        "Fill the memory where it is allocated; until then, start the program with",
        None,
        (("GLIBC_TUNABLES", "glibc.malloc.perturb=255:glibc.malloc.tcache_count=0"),),
    ),
    "addresses": (
        "Start the program without address space randomisation",
        "setarch --addr-no-randomize COMMAND",
        None,
    ),
}
"""What to do so that a factor is held still without this tool; the experiment did the same."""


def code_change(hypothesis: Hypothesis) -> CodeChange | None:
    """The change of the program's lines that removes a cause; None if it takes none, or no small one is known.

    Args:
        hypothesis: The cause, which experiments confirmed.
    """
    if not hypothesis.intervention.sources:
        return None
    uses = [hypothesis.source] if hypothesis.source is not None else possible_uses(_held(hypothesis))
    return next((found for use in uses if (found := code_fix(use)) is not None), None)


def with_fixes(found: Sequence[Hypothesis], plain: Intervention) -> Intervention:
    """The program as it would be with all fixes: with lines changed where that can be done, and else as in the experiments.

    Args:
        found: The causes that experiments confirmed.
        plain: What all runs have in common.
    """
    intervention = plain
    for one in found:
        change = code_change(one)
        added = one.intervention if change is None else Intervention(changes=frozenset({change}))
        intervention = intervention.also(added)
    return intervention


def fixes_for(
    found: Sequence[Hypothesis], last: Trial | None, changed: Trial | None, step_seconds: float | None
) -> list[Fix]:
    """What removes each cause.

    Args:
        found: The causes that experiments confirmed.
        last: The last experiment, in which all of them were removed.
        changed: Runs with the changed lines; None if none were made.
        step_seconds: How long a step takes with nothing removed; None if that was not measured.
    """
    with_changes = changed if changed is not None and changed.is_equal else None
    without = with_changes or (last if last is not None and last.is_equal else None)
    proofs = [with_changes if one.intervention.sources else without for one in found]
    return [_fix(one, proof, step_seconds) for one, proof in zip(found, proofs, strict=True)]


def outside_fix(cause: str, trial: Trial, step_seconds: float | None) -> Fix:
    """What can be set from outside instead of changing a line of the program.

    Args:
        cause: What it removes.
        trial: Runs with it.
        step_seconds: How long a step takes with nothing removed; None if that was not measured.
    """
    proof = _proof(trial if trial.is_equal else None, step_seconds)
    return Fix(cause, "Or, without changing the program, start it with", None, causes()[cause].env, *proof)


def _proof(trial: Trial | None, step_seconds: float | None) -> tuple[bool, int, float | None]:
    """Whether runs showed that a fix helps, how many, and the ratio of step times."""
    return (False, 0, None) if trial is None else (True, trial.runs, _ratio(trial, step_seconds))


def _held(hypothesis: Hypothesis) -> FixedSource:
    if hypothesis.source is None:
        return next(iter(hypothesis.intervention.sources))
    return FixedSource(hypothesis.source.site.file, hypothesis.source.site.line, hypothesis.source.source)


def _fix(hypothesis: Hypothesis, trial: Trial | None, step_seconds: float | None) -> Fix:
    proof = _proof(trial, step_seconds)
    entry = causes()[hypothesis.cause]
    if hypothesis.intervention.sources:
        held = _held(hypothesis)
        place = f"at {PurePath(held.file).name}:{held.line}"
        change = code_change(hypothesis)
        if change is None:
            # The runs had a fixed value there, and no line is known that gives just that one.
            return Fix(hypothesis.cause, f"{entry.remedy}, {place}")
        remedy = causes()["seed-varies"].remedy if held.source in _MADE_SEEDS else entry.remedy
        title = f"{remedy}, {place}{_repeated(hypothesis) or _apart(hypothesis, change)}"
        return Fix(hypothesis.cause, title, "\n".join([*change.imports, textwrap.dedent(change.code)]), None, *proof)
    if hypothesis.intervention.fresh_copy:
        title = "Start each run from the same files, as in a copy of the folder that is made anew for each"
        return Fix(hypothesis.cause, title, "determinism check --fresh-copy -- COMMAND", None, *proof)
    factors = [name for name, _ in hypothesis.intervention.factors]
    title, code, environment = _BY_FACTOR.get(factors[0] if factors else "", (entry.remedy, None, None))
    if code is None and environment is None:
        # It takes a change that nobody but the author can make, and what the experiment did is not that.
        return Fix(hypothesis.cause, entry.remedy, None, None)
    return Fix(hypothesis.cause, title, code, environment, *proof)


def _repeated(hypothesis: Hypothesis) -> str:
    """That equal runs are not all that is wanted of a generator that is seeded again and again."""
    source = hypothesis.source
    if source is None or source.source not in _SEEDED or max(source.counts) < 2:
        return ""
    return f", which ran {max(source.counts):,} times: each then draws the same numbers, so rather make it once, or seed it by the step"


def _apart(hypothesis: Hypothesis, change: CodeChange) -> str:
    """That equal runs are not all that is wanted of processes that were to draw other numbers than each other."""
    source = hypothesis.source
    if source is None or source.apart < 2 or keeps_other_parts(change):
        return ""
    if source.source in _SEEDED:
        advice = "all of them then draw the same numbers, so rather add what tells them apart, as their rank"
    elif source.source in _MADE_SEEDS:
        advice = "where they are to draw other numbers than each other, add what tells them apart, as their rank"
    else:
        return ""
    return f", which {source.apart:,} processes ran: {advice}"


def _ratio(trial: Trial, step_seconds: float | None) -> float | None:
    """How long a step takes with the fix, divided by how long it takes without; None if that was not measured."""
    return round(trial.step_seconds / step_seconds, 2) if trial.step_seconds and step_seconds else None
