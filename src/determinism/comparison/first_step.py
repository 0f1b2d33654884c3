"""Finds where the first step after a checkpoint begins, in the full run and in the resumed one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from determinism.comparison.align import join, keys_of
from determinism.comparison.canonical import Canonical
from determinism.trace.chunk import Array, Chunk, cut, pick
from determinism.trace.chunk import join as joined
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import LOAD_OP, Table
from determinism.types import Phase, Role


def first_step_of_both(full: ProcessTrace, resumed: ProcessTrace, steps: int) -> tuple[int, int] | None:
    """The records with which the first step after the checkpoint begins in both; None if one has no such step.

    What goes before in that step is building, loading and passing over in the one, and the end of the step before in the other.

    Args:
        full: The run that was not stopped.
        resumed: The run that went on.
        steps: How many steps of the full run went before.

    Raises:
        TraceError: A trace is damaged.
    """
    mine, other = of_step(full, steps), of_step(resumed, 0)
    if mine is None or other is None:
        return None
    batches = [np.flatnonzero(chunk.columns["role"] == Role.BATCH) for chunk in (mine, other)]
    count = min(len(rows) for rows in batches)
    if count:
        return mine.first + int(batches[0][-count]), other.first + int(batches[1][-count])
    is_known = ~np.isin(mine.columns["phase"], (Phase.CHECKPOINT, Phase.INIT))
    usable = [np.flatnonzero(is_known), np.flatnonzero(_has_begun(resumed, other))]
    return _first_common(mine, other, usable, Canonical(full, resumed))


def _has_begun(process: ProcessTrace, chunk: Chunk) -> Array:
    """Which records may belong to the first step: before all that is loaded there is building, and after it the step may have begun."""
    ops = process.names.texts(Table.OP)
    loads = np.flatnonzero(chunk.columns["op"] == ops.index(LOAD_OP)) if LOAD_OP in ops else np.zeros(0, np.int64)
    first = int(loads[-1]) + 1 if loads.size else chunk.rows
    found: Array = np.isin(chunk.columns["phase"], (Phase.CHECKPOINT, Phase.INIT), invert=True)
    found[first:] |= chunk.columns["phase"][first:] == Phase.INIT
    return found


def _first_common(mine: Chunk, other: Chunk, usable: list[Array], canonical: Canonical) -> tuple[int, int] | None:
    """The first records that do the same in both, as seen from the end of the step."""
    keys = [
        keys_of(pick(in_forward(chunk), rows), canonical, side)
        for side, (chunk, rows) in enumerate(zip((mine, other), usable, strict=True))
    ]
    left, right = join(keys[0][::-1], keys[1][::-1])
    pairs = [(len(keys[0]) - 1 - int(a), len(keys[1]) - 1 - int(b)) for a, b in zip(left, right, strict=True)]
    found: tuple[int, int] | None = None
    for at, its in sorted(pairs, reverse=True):
        if found is None or its < found[1]:
            found = at, its
    return None if found is None else (mine.first + int(usable[0][found[0]]), other.first + int(usable[1][found[1]]))


def in_forward(chunk: Chunk) -> Chunk:
    """The records of a first step, in which all that comes before the backward belongs to the forward.

    Between a batch and the model, a program that has just begun is in another phase than one that comes from a step.
    """
    until = first_backward(chunk)
    phase = chunk.columns["phase"].copy()
    phase[:until] = np.where(np.isin(phase[:until], (Phase.INIT, Phase.OTHER)), Phase.FORWARD, phase[:until])
    return replace(chunk, columns={**chunk.columns, "phase": phase})


def first_backward(chunk: Chunk) -> int:
    """The row with which the backward begins; 0 if there is none."""
    is_later = np.isin(chunk.columns["phase"], (Phase.BACKWARD, Phase.OPTIMIZER)) | (chunk.columns["role"] == Role.LOSS)
    return int(np.argmax(is_later)) if is_later.any() else 0


def of_step(process: ProcessTrace, step: int, start: int = 0) -> Chunk | None:
    """The records of one step; None if there are none.

    Args:
        process: Whose.
        step: Its number.
        start: The first record that counts.

    Raises:
        TraceError: The trace is damaged.
    """
    parts = []
    for chunk in process.chunks():
        rows: Array = np.flatnonzero((chunk.columns["step"] == step) & (chunk.numbers >= start))
        if len(rows):
            parts.append(cut(chunk, int(rows[0]), int(rows[-1]) + 1))
    return joined(parts) if parts else None
