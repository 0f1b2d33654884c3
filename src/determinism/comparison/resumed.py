"""Compares a run that went on from a checkpoint with the same steps of the run that was not stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from determinism.comparison.align import join, keys_of
from determinism.comparison.canonical import Canonical
from determinism.comparison.first_gradients import alone_with_gradients
from determinism.comparison.held_alike import held_by_one
from determinism.comparison.origins import entry
from determinism.comparison.process import ProcessComparison, compare_processes
from determinism.comparison.streams import ordered
from determinism.trace.chunk import Array, Chunk, cut, pick
from determinism.trace.chunk import join as joined
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.remainder import Remainder
from determinism.types import Kind, Phase, Role

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
    starts = _starts(full, resumed, steps)
    compared = min(full.extent[1] - steps, resumed.extent[1])
    if starts is None or compared <= 0:
        return ResumedProcess(full, first, resumed, steps, ProcessComparison(full.key), None, 0, departs)
    unseen = alone_with_gradients(full, resumed, steps, starts)
    alone = held_by_one(full, resumed, steps)
    parts = (
        Remainder(full, starts[0], skipped=unseen.full, without=alone[0]),
        Remainder(resumed, starts[1], steps_before=steps, unseen=unseen.resumed, without=alone[1]),
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


def _starts(full: ProcessTrace, resumed: ProcessTrace, steps: int) -> tuple[int, int] | None:
    """The records with which the first step after the checkpoint begins in both; None if one has no such step.

    What goes before in that step is building, loading and passing over in the one, and the end of the step before in the other.
    """
    mine, other = of_step(full, steps), of_step(resumed, 0)
    if mine is None or other is None:
        return None
    batches = [np.flatnonzero(chunk.columns["role"] == Role.BATCH) for chunk in (mine, other)]
    count = min(len(rows) for rows in batches)
    if count:
        return mine.first + int(batches[0][-count]), other.first + int(batches[1][-count])
    return _first_common(mine, other, Canonical(full, resumed))


def _first_common(mine: Chunk, other: Chunk, canonical: Canonical) -> tuple[int, int] | None:
    """The first records that do the same in both, as seen from the end of the step."""
    usable = [np.flatnonzero(~np.isin(c.columns["phase"], (Phase.CHECKPOINT, Phase.INIT))) for c in (mine, other)]
    keys = [
        keys_of(pick(chunk, rows), canonical, side)
        for side, (chunk, rows) in enumerate(zip((mine, other), usable, strict=True))
    ]
    left, right = join(keys[0][::-1], keys[1][::-1])
    pairs = [(len(keys[0]) - 1 - int(a), len(keys[1]) - 1 - int(b)) for a, b in zip(left, right, strict=True)]
    found: tuple[int, int] | None = None
    for at, its in sorted(pairs, reverse=True):
        if found is None or its < found[1]:
            found = at, its
    return None if found is None else (mine.first + int(usable[0][found[0]]), other.first + int(usable[1][found[1]]))


def of_step(process: ProcessTrace, step: int) -> Chunk | None:
    """The records of one step; None if there are none."""
    parts = []
    for chunk in process.chunks():
        rows: Array = np.flatnonzero(chunk.columns["step"] == step)
        if len(rows):
            parts.append(cut(chunk, int(rows[0]), int(rows[-1]) + 1))
    return joined(parts) if parts else None
