"""Compares runs of which only the newest records were kept, by the steps that both have, and by their ledgers before those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from determinism.comparison.narrowing import Narrowing
from determinism.comparison.processes import ProcessPair
from determinism.comparison.result import BlindSpot, Comparison, Divergence, Trouble
from determinism.op_semantics import Op, OpSemantics
from determinism.trace.ledger import LedgerParting, earliest, first_parting, has_ledger, read_ledger
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.schema import STEP_OP
from determinism.types import Verdict


def removed_steps(process: ProcessTrace) -> int:
    """How many of the first steps of a process have no records any more."""
    return process.first_step if process.num_removed else 0


def from_common_step(pair: ProcessPair) -> ProcessPair:
    """Both processes from the first step of which both have all records; as they are where nothing was removed.

    Args:
        pair: The same process of two runs.

    Raises:
        TraceError: A trace is damaged.
    """
    step = max(map(removed_steps, pair))
    if not step:
        return pair
    first, second = pair
    return first.since(step), second.since(step)


def ledgers_part(pairs: Sequence[ProcessPair]) -> LedgerParting | None:
    """Where ledgers part in steps whose records one of the runs no longer has; None if they do not, or nobody knows.

    Args:
        pairs: The processes of two runs.

    Raises:
        TraceError: A ledger is damaged.
    """
    # Whether one run made fewer steps is known from its records and from how it ended.
    return earliest(
        parting
        for pair in pairs
        if (parting := _parting(pair)) and parting.groups and parting.step < _first_common(pair)
    )


def _first_common(pair: ProcessPair) -> int:
    return max(map(removed_steps, pair))


def _parting(pair: ProcessPair) -> LedgerParting | None:
    if not _first_common(pair) or not all(has_ledger(process.folder) for process in pair):
        return None
    first, second = (read_ledger(process.folder) for process in pair)
    return first_parting(first, second, pair[0].key)


def parted_before(comparison: Comparison, parting: LedgerParting) -> Comparison:
    """What is known of runs that part in steps whose records were removed."""
    groups = " and ".join(parting.groups) or "the number of steps"
    divergence = Divergence(
        None, parting.process, 0, 0, parting.step, "other", Op(STEP_OP, OpSemantics.NOT_ONE_OP), None, None, None, (), None, (),
        f"The ledgers of the runs differ in {groups}. The ops of this step were removed to stay within --max-disk. To see them, record "
        f"both runs with --from-step {max(parting.step - 2, 1)} --steps {parting.step + 3}, or use determinism narrow.",
    )  # fmt: skip
    narrowing = Narrowing(
        parting.process,
        parting.step,
        parting.groups,
        parting.steps,
        parting.losses,
        (),
        0,
        seconds=0.0,
        run_seconds=0.0,
    )
    return replace(comparison, verdict=Verdict.DIFFERENT, first_divergence=divergence, narrowing=narrowing)


def is_apart(pair: ProcessPair) -> bool:
    """Whether one run has no record of any step of which the other one still has all.

    Args:
        pair: What `from_common_step` gave.
    """
    return any(process.from_step for process in pair) and not all(
        any(chunk.rows for chunk in process.chunks()) for process in pair
    )


def troubles(pairs: Sequence[ProcessPair]) -> Iterator[Trouble]:
    """Why nothing is known of steps whose records were removed, although what is left is equal.

    Args:
        pairs: The processes of two runs.
    """
    for pair in pairs:
        step = _first_common(pair)
        if not step:
            continue
        if not all(has_ledger(process.folder) for process in pair):
            yield Trouble(
                "steps-removed",
                f"The records of steps before {step:,} of process {pair[0].key} were removed to stay within --max-disk, and no ledger says "
                "whether they were equal. What is left is equal. Raise the limit.",
            )
        elif is_apart(from_common_step(pair)):
            yield Trouble(
                "steps-apart",
                f"Of process {pair[0].key}, one run has records only from step {step:,} on, since earlier ones were "
                "removed to stay within --max-disk, and the other ended before that step. The ledgers are equal as "
                "far as both go. Record the longer run with --steps, or raise the limit.",
            )


def removed_spots(trace: Trace, number: int) -> Iterator[BlindSpot]:
    """What was removed of a run.

    Args:
        trace: The run.
        number: Which of those that are compared, from 1.
    """
    for process in trace.processes:
        if process.num_removed:
            reason = "the oldest were removed to stay within --max-disk"
            if has_ledger(process.folder):
                reason += "; the ledger has digests of these steps"
            what = f"ops before step {process.first_step:,} of process {process.key} in run {number}"
            yield BlindSpot("ops-removed", what, reason, process.num_removed)
