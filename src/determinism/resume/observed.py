"""Looks up, in whole processes, what the full run and the resumed run held, drew and received."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from determinism.comparison.processes import ProcessComparison
from determinism.comparison.records import Entry, entry_of
from determinism.op_semantics import OpSemantics
from determinism.trace.chunks import Array, Chunk, cut
from determinism.trace.chunks import join as joined
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import END_OP, LOAD_OP, NONE, STEP_OP, Frame, Table
from determinism.trace.views import TraceSuffix
from determinism.types import NO_DIGEST, Role


def of_step(process: ProcessTrace, step: int, start: int = 0) -> Chunk | None:
    """The records of one step; None if there are none.

    Args:
        process: The process.
        step: The number of the step.
        start: The first record to include.

    Raises:
        TraceError: The trace is damaged.
    """
    parts = []
    for chunk in process.chunks():
        rows: Array = np.flatnonzero((chunk.columns["step"] == step) & (chunk.numbers >= start))
        if len(rows):
            parts.append(cut(chunk, int(rows[0]), int(rows[-1]) + 1))
    return joined(parts) if parts else None


@dataclass(frozen=True)
class HeldAt:
    """What was held at the end of one step."""

    digests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """By kind and name; what was not digested is missing."""
    makers: dict[tuple[str, str], int] = field(default_factory=dict)
    """The record that last wrote each, -1 if none is known; also by kind and name."""
    generators: tuple[bytes, ...] = ()
    """States of the generators, in the order in which they are recorded: the framework's, Python's, NumPy's."""


def held_at_ends(process: ProcessTrace, *, first: int, last: int) -> dict[int, HeldAt]:
    """What a process, recorded at level `op`, held at the end of each of some steps.

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
            found = tuple(chunk.children["generators"].digests_of(int(row)))
    return found


def _held(process: ProcessTrace, chunk: Chunk, row: int) -> HeldAt:
    one = entry_of(process, chunk, row)
    names = json.loads(one.arguments) if one.arguments.startswith("[[") else []
    digests, makers = {}, {}
    for (kind, name), held in zip(names, one.inputs, strict=False):
        digest = held.digest
        if held.producer >= 0:
            made = entry_of(process, *process.record(held.producer)).outputs
            digest = made[held.output].digest if held.output < len(made) else None
        if digest is not None and digest != NO_DIGEST:
            digests[kind, name], makers[kind, name] = digest, held.producer
    generators = chunk.children["generators"]
    states = generators.columns["digest"][generators.starts[row] : generators.starts[row + 1]]
    return HeldAt(digests, makers, tuple(state.tobytes() for state in states))


@dataclass(frozen=True)
class ResumedProcess:
    """One process of the three runs, and how its resumed part compares."""

    full: ProcessTrace
    first: ProcessTrace
    resumed: ProcessTrace
    steps_before: int
    """How many steps the full run made before the first one of the resumed run."""
    result: ProcessComparison
    parts: tuple[TraceSuffix, TraceSuffix] | None
    """The compared parts; None if no step is left to compare."""
    steps: int
    """How many steps were compared."""
    first_departs: ProcessComparison | None
    """How the first run compares with the full one, if they differ before the checkpoint."""


def digests(process: ProcessTrace, *, upto_step: int, of_loads: bool = False) -> set[bytes]:
    """The digests of what records read or made; or of what was loaded from files, which need not have been used."""
    ops = process.names.texts(Table.OP)
    load = ops.index(LOAD_OP) if LOAD_OP in ops else -1
    found: set[bytes] = set()
    for chunk in process.chunks():
        rows = int((chunk.columns["step"] <= upto_step).sum())
        is_wanted = (chunk.columns["op"] == load) == of_loads
        for place in ("outputs", "input_digests"):
            children = chunk.children[place]
            wanted = children.columns["digest"][children.spread(is_wanted & (np.arange(chunk.rows) < rows))]
            found.update(row.tobytes() for row in wanted)
        if rows < chunk.rows:
            break
    return found


def steps_when_saved(first: Iterable[ProcessTrace], resumed: Iterable[ProcessTrace]) -> set[int]:
    """Return the numbers of steps after which the first run saved the most of what the resumed run loaded.

    Raises:
        TraceError: A trace is damaged.
    """
    loaded = {digest for process in resumed for digest in digests(process, upto_step=0, of_loads=True)}
    saved: dict[int, set[bytes]] = {}
    for process in first:
        for step, _, found in _saves(process):
            saved.setdefault(step, set()).update(found)
    counts = {step: len(found & loaded) for step, found in saved.items()}
    return {step for step, count in counts.items() if count and count == max(counts.values())}


def saving_site(first: ProcessTrace, resumed: ProcessTrace) -> Frame | None:
    """Return the line of the first save with the most of what the resumed run loaded; if it loaded nothing known, of the last save.

    Raises:
        TraceError: A trace is damaged.
    """
    loaded = digests(resumed, upto_step=0, of_loads=True)
    most, stack = 0, NONE
    for _, number, found in _saves(first):
        count = len(found & loaded)
        if count > most or not most:
            most, stack = count, number
    frames = () if stack == NONE else first.names.stack(stack)
    return frames[0] if frames else None


def _saves(process: ProcessTrace) -> Iterator[tuple[int, int, set[bytes]]]:
    """Yield the step, the number of the stack and the digests of each save."""
    for chunk in process.chunks():
        for row in np.flatnonzero(chunk.columns["role"] == Role.CHECKPOINT).tolist():
            given = (chunk.children[place].digests_of(row) for place in ("outputs", "input_digests"))
            yield int(chunk.columns["step"][row]), int(chunk.columns["stack"][row]), set().union(*given)


def drawn_from(process: ProcessTrace, upto_step: int) -> list[bytes]:
    """The states of generators from which ops drew, in order."""
    found: list[bytes] = []
    for chunk in process.chunks():
        generators = chunk.children["generators"]
        is_wanted = (chunk.columns["role"] == Role.OP) & (chunk.columns["step"] <= upto_step)
        found += [row.tobytes() for row in generators.columns["digest"][generators.spread(is_wanted)]]
    return found


def seeds_of_epoch(process: ProcessTrace, step: int) -> set[bytes]:
    """The states of generators from which a data loader drew its seeds in a step, before its first batch in that step."""
    chunk = of_step(process, step)
    if chunk is None:
        return set()
    seeds = process.names.ops_that(OpSemantics.SEEDS_LOADER)
    batches = np.flatnonzero(chunk.columns["role"] == Role.BATCH)
    rows = np.flatnonzero(np.isin(chunk.columns["op"], seeds))
    before = rows[rows < batches[0]] if len(batches) else rows
    return {state for row in before for state in chunk.children["generators"].digests_of(int(row))}


def batches_of(process: ProcessTrace) -> set[tuple[bytes, ...]]:
    """The digests of each batch from a data loader."""
    found = set()
    for chunk in process.chunks():
        for row in np.flatnonzero(chunk.columns["role"] == Role.BATCH):
            found.add(tuple(output.digest for output in entry_of(process, chunk, int(row)).outputs))
    return found


def gathered(process: ProcessTrace) -> set[bytes]:
    """The digests of what was gathered from other tensors, as samples are from the data."""
    ops = process.names.ops_that(OpSemantics.GATHERS)
    found: set[bytes] = set()
    for chunk in process.chunks():
        outputs = chunk.children["outputs"]
        gathers = outputs.spread(np.isin(chunk.columns["op"], ops))
        found.update(row.tobytes() for row in outputs.columns["digest"][gathers])
    return found


def first_of(process: ProcessTrace, step: int, op: str, module: str | None) -> Entry | None:
    """The first record of an op in a step; None if there is none."""
    chunk = of_step(process, step)
    found = () if chunk is None else (entry_of(process, chunk, row) for row in range(chunk.rows))
    return next((one for one in found if one.op == op and one.module == module), None)


def read_by(process: ProcessTrace, record: Entry) -> set[bytes]:
    """The known digests of what a record read."""
    found = set()
    for one in record.reads:
        outputs = entry_of(process, *process.record(one.producer)).outputs if one.producer >= 0 else ()
        digest = outputs[one.output].digest if one.output < len(outputs) else one.digest
        found |= {digest} if digest is not None else set()
    return found


def made(record: Entry) -> list[bytes]:
    """The digests of what a record made."""
    return [output.digest for output in record.outputs]


def added_to_gradients(process: ProcessTrace, records: Iterable[int]) -> bool:
    """Whether an addition in a backward differs from its addend: a gradient already existed, and was not zero.

    Args:
        process: The process of the whole run.
        records: Numbers of the additions, and of other records, which are ignored.
    """
    for number in records:
        one = entry_of(process, *process.record(int(number)))
        if len(one.inputs) != 2 or not one.outputs:
            continue
        added = one.inputs[1]
        given = entry_of(process, *process.record(added.producer)).outputs if added.producer >= 0 else ()
        is_known = added.output < len(given) and given[added.output].layout == added.layout
        if is_known and given[added.output].digest != one.outputs[0].digest:
            return True
    return False
