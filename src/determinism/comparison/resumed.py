"""Compares a run that went on from a checkpoint with the same steps of the run that was not stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from determinism.comparison.first_gradients import alone_with_gradients
from determinism.comparison.first_step import first_backward, first_step_of_both, of_step
from determinism.comparison.held_alike import held_by_one
from determinism.comparison.origins import entry
from determinism.comparison.process import ProcessComparison, compare_processes
from determinism.comparison.streams import ordered
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.remainder import Remainder
from determinism.types import Kind

_UNKNOWN_INPUTS = (
    "The op read a part of something that was made before the checkpoint, such as a hidden state, and gave something else: what it read "
    "was not put back, or is not the same."
)


@dataclass(frozen=True)
class ResumedProcess:
    """One process of the three runs, and how its resumed part compares."""

    full: ProcessTrace
    first: ProcessTrace
    resumed: ProcessTrace
    steps_before: int
    """How many steps the first run made."""
    result: ProcessComparison
    parts: tuple[Remainder, Remainder] | None
    """What was compared; None if no step is left to compare."""
    steps: int
    """How many steps were compared."""
    first_departs: ProcessComparison | None
    """How the first run compares with the full one, where it is not the same up to the checkpoint."""


def compare_resumed(full: Trace, first: Trace, resumed: Trace) -> list[ResumedProcess]:
    """Compare each process of a resumed run with the same steps of the full run.

    Args:
        full: The run that was not stopped.
        first: The run that saved the checkpoint and ended.
        resumed: The run that went on from it.

    Raises:
        TraceError: A trace is damaged.
    """
    by_key: Sequence[dict[str, ProcessTrace]] = [{p.key: p for p in ordered(trace)} for trace in (full, first, resumed)]
    common = [key for key in by_key[0] if all(key in keys for keys in by_key)]
    return [_compare(by_key[0][key], by_key[1][key], by_key[2][key]) for key in common]


def _compare(full: ProcessTrace, first: ProcessTrace, resumed: ProcessTrace) -> ResumedProcess:
    steps = first.extent[1]
    whole = [_count_before(process, steps) for process in (full, first)]
    early = compare_processes(full.until(whole[0]), first.until(whole[1]))
    # What one of them did besides, such as saving, has not changed anything.
    departs = early if early.divergence is not None and early.divergence.kind is not Kind.STRUCTURE else None
    starts = first_step_of_both(full, resumed, steps)
    compared = min(full.extent[1] - steps, resumed.extent[1])
    if starts is None or compared <= 0:
        return ResumedProcess(full, first, resumed, steps, ProcessComparison(full.key), None, 0, departs)
    unseen = alone_with_gradients(full, resumed, steps, starts)
    alone = held_by_one(full, resumed, steps)
    ends = _backward_begins(full, steps, starts[0]), _backward_begins(resumed, 0, starts[1])
    parts = (
        Remainder(full, starts[0], forward_until=ends[0], skipped=unseen.full, without=alone[0]),
        Remainder(
            resumed, starts[1], forward_until=ends[1], steps_before=steps, unseen=unseen.resumed, without=alone[1]
        ),
    )
    result = compare_processes(*parts)
    _doubt_op(result, parts)
    return ResumedProcess(full, first, resumed, steps, result, parts, compared, departs)


def _doubt_op(result: ProcessComparison, parts: tuple[Remainder, Remainder]) -> None:
    """Blame no op that read something from before the checkpoint of which it is not known whether it was the same."""
    divergence = result.divergence
    if divergence is None or divergence.kind is not Kind.OP:
        return
    part = parts[divergence.records_of]
    read = entry(part, *part.record(divergence.record)).reads
    if any(one.producer < 0 and one.digest is None and one.layout is not None for one in read):
        result.divergence = replace(divergence, kind=Kind.DATA, inputs_equal=None, detail=_UNKNOWN_INPUTS)


def _count_before(process: ProcessTrace, step: int) -> int:
    return sum(int((chunk.columns["step"] < step).sum()) for chunk in process.chunks())


def _backward_begins(process: ProcessTrace, step: int, start: int) -> int:
    """The record with which the backward of a step begins."""
    chunk = of_step(process, step, start)
    return start if chunk is None else chunk.first + first_backward(chunk)
