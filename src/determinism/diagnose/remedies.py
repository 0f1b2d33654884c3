"""The fixes for causes that were found: what to write, and whether runs with it were equal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import PurePath

from determinism.comparison.findings import Fix
from determinism.diagnose.catalog import causes
from determinism.diagnose.code_fixes import code_fix
from determinism.diagnose.hypotheses import Hypothesis
from determinism.diagnose.line_uses import possible_uses
from determinism.diagnose.trial import Trial
from determinism.probes.request import FixedSource

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


_HELD_AS_THE_LINE_WOULD = frozenset(
    {
        "set-order", "listing", "unseeded-generator", "seed-value", "completion-order", "loader-order", "uninitialized-array",
        "checkpoint-rng",
    }
)  # fmt: skip
"""Sources that an experiment holds still by giving what the changed line gives: so runs with it are runs with the fix."""


def fixes_for(found: Sequence[Hypothesis], last: Trial | None, step_seconds: float | None) -> list[Fix]:
    """What removes each cause.

    Args:
        found: The causes that experiments confirmed.
        last: The last experiment, in which all of them were removed.
        step_seconds: How long a step takes with nothing removed; None if that was not measured.
    """
    is_verified = last is not None and last.is_equal
    runs = last.runs if last is not None and is_verified else 0
    ratio = _ratio(last, step_seconds) if is_verified else None
    return [_fix(one, verified=is_verified, runs=runs, ratio=ratio) for one in found]


def outside_fix(cause: str, trial: Trial, step_seconds: float | None) -> Fix:
    """What can be set from outside instead of changing a line of the program.

    Args:
        cause: What it removes.
        trial: Runs with it.
        step_seconds: How long a step takes with nothing removed; None if that was not measured.
    """
    entry = causes()[cause]
    ratio = _ratio(trial, step_seconds) if trial.is_equal else None
    title = "Or, without changing the program, start it with"
    return Fix(cause, title, None, entry.env, trial.is_equal, trial.runs if trial.is_equal else 0, ratio)


def _fix(hypothesis: Hypothesis, *, verified: bool, runs: int, ratio: float | None) -> Fix:
    entry = causes()[hypothesis.cause]
    if hypothesis.intervention.sources:
        held = next(iter(hypothesis.intervention.sources))
        if hypothesis.source is not None:
            held = FixedSource(hypothesis.source.site.file, hypothesis.source.site.line, hypothesis.source.source)
        title = f"{entry.remedy}, at {PurePath(held.file).name}:{held.line}"
        code = _code(hypothesis, held)
        if code is None or held.source not in _HELD_AS_THE_LINE_WOULD:
            # The runs had a fixed value there, and no changed line would give just that one.
            return Fix(hypothesis.cause, title, code)
        return Fix(hypothesis.cause, title, code, None, verified, runs, ratio)
    if hypothesis.intervention.fresh_copy:
        title = "Start each run from the same files, as in a copy of the folder that is made anew for each"
        return Fix(hypothesis.cause, title, "determinism check --fresh-copy -- COMMAND", None, verified, runs, ratio)
    factors = [name for name, _ in hypothesis.intervention.factors]
    title, code, environment = _BY_FACTOR.get(factors[0] if factors else "", (entry.remedy, None, None))
    if code is None and environment is None:
        # It takes a change that nobody but the author can make, and what the experiment did is not that.
        return Fix(hypothesis.cause, entry.remedy, None, None)
    return Fix(hypothesis.cause, title, code, environment, verified, runs, ratio)


def _code(hypothesis: Hypothesis, held: FixedSource) -> str | None:
    """The line as it should be; None if no small change is known for it."""
    sources = [hypothesis.source] if hypothesis.source is not None else possible_uses(held)
    changed = next((found for source in sources if (found := code_fix(source)) is not None), None)
    return None if changed is None else "\n".join([*changed.imports, textwrap.dedent(changed.code)])


def _ratio(last: Trial | None, step_seconds: float | None) -> float | None:
    """How long a step takes with the fix, divided by how long it takes without; None if that was not measured."""
    if last is None or not last.step_seconds or not step_seconds:
        return None
    return round(last.step_seconds / step_seconds, 2)
