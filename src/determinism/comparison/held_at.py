"""What a process held at the end of a step: parameters, optimizer state, states of generators, by digest."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from determinism.comparison.origins import entry
from determinism.trace.chunk import Chunk
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import END_OP, STEP_OP, Table
from determinism.types import NO_DIGEST


@dataclass(frozen=True)
class HeldAt:
    """What was held at the end of one step."""

    digests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """By kind and name; what was not digested is missing."""
    makers: dict[tuple[str, str], int] = field(default_factory=dict)
    """The record that wrote it last, -1 if none is known; by kind and name likewise."""
    generators: tuple[bytes, ...] = ()
    """States of the generators, in the order in which they are recorded: the framework's, Python's, NumPy's."""


def held_at_ends(process: ProcessTrace, *, first: int, last: int) -> dict[int, HeldAt]:
    """What was held at the end of each of some steps.

    Args:
        process: Recorded at the level `op`.
        first: The first of the steps.
        last: The last of them.

    Raises:
        TraceError: The trace is damaged.
    """
    ops = process.names.texts(Table.OP)
    step_op = ops.index(STEP_OP) if STEP_OP in ops else -1
    places: list[tuple[Chunk, int]] = []
    for chunk in process.chunks():
        steps = chunk.columns["step"]
        rows = np.flatnonzero((chunk.columns["op"] == step_op) & (steps >= first) & (steps <= last))
        places += [(chunk, int(row)) for row in rows]
    return {int(chunk.columns["step"][row]): _held(process, chunk, row) for chunk, row in places}


def states_at_end(process: ProcessTrace) -> tuple[bytes, ...]:
    """States of the generators when the process ended; empty if it was killed.

    Raises:
        TraceError: The trace is damaged.
    """
    ops = process.names.texts(Table.OP)
    end = ops.index(END_OP) if END_OP in ops else -1
    found: tuple[bytes, ...] = ()
    for chunk in process.chunks():
        for row in np.flatnonzero(chunk.columns["op"] == end):
            generators = chunk.children["generators"]
            states = generators.columns["digest"][generators.starts[row] : generators.starts[row + 1]]
            found = tuple(state.tobytes() for state in states)
    return found


def _held(process: ProcessTrace, chunk: Chunk, row: int) -> HeldAt:
    one = entry(process, chunk, row)
    names = json.loads(one.arguments) if one.arguments.startswith("[[") else []
    digests, makers = {}, {}
    for (kind, name), held in zip(names, one.inputs, strict=False):
        digest = held.digest
        if held.producer >= 0:
            made = entry(process, *process.record(held.producer)).outputs
            digest = made[held.output].digest if held.output < len(made) else None
        if digest is not None and digest != NO_DIGEST:
            digests[kind, name], makers[kind, name] = digest, held.producer
    generators = chunk.children["generators"]
    states = generators.columns["digest"][generators.starts[row] : generators.starts[row + 1]]
    return HeldAt(digests, makers, tuple(state.tobytes() for state in states))
