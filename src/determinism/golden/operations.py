"""What the ops of a run gave, in order: digests for a golden, and the op and line at which a run leaves a golden."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from determinism.golden.ledger import grouped_digests
from determinism.golden.result import Place
from determinism.trace.chunks import Chunk
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.schema import NONE, STEP_OP, Table
from determinism.types import NO_DIGEST, Role, Stream

MOST_OPERATIONS = 20_000
"""Of the first step that are looked at; initialisation counts among them."""


@dataclass(frozen=True)
class _Operation:
    digest: str
    chunk: Chunk
    row: int


def process_of(trace: Trace, key: str) -> ProcessTrace | None:
    """The process with this key; None if the trace has none."""
    ordered = (process for process in trace.processes if process.description.get("stream") == Stream.PROCESS)
    return next((process for process in ordered if process.key == key), None)


def operation_digests(process: ProcessTrace) -> list[str]:
    """Digests of what the ops of the first step gave, in their order."""
    return [operation.digest for operation in _operations(process)]


def _operations(process: ProcessTrace) -> Iterator[_Operation]:
    count = 0
    for chunk in process.chunks():
        outputs = chunk.children["outputs"]
        is_op = np.isin(chunk.columns["role"], (Role.OP, Role.ESCAPE, Role.BATCH, Role.LOSS))
        for row in np.flatnonzero(is_op & (chunk.columns["step"] == 0)):
            values = [value.hex() for value in outputs.digests_of(int(row)) if value != NO_DIGEST]
            if values:
                yield _Operation(
                    values[0] if len(values) == 1 else grouped_digests(values, len(values))[0], chunk, int(row)
                )
                count += 1
                if count == MOST_OPERATIONS:
                    return
        if chunk.rows and int(chunk.columns["step"][-1]) > 0:
            return


def first_difference(process: ProcessTrace, stored: Sequence[str], size: int) -> Place | None:
    """The first op of the first step that gave something else than a golden says; None if all agree.

    Args:
        process: Recorded op by op.
        stored: The digests that the golden keeps, shortened.
        size: How many ops share one of them.
    """
    operations = list(_operations(process))
    if not stored or not operations:
        return None
    width = len(stored[0])
    present = [text[:width] for text in grouped_digests([operation.digest for operation in operations], size)]
    at = _first_parting(stored, present)
    if at is None:
        return None
    first, last = (min(number, len(operations) - 1) for number in (at * size, (at + 1) * size - 1))
    place = _place(process, operations[first])
    until = _place(process, operations[last]).frame
    is_range = size > 1 and until != place.frame
    return Place(place.op, place.step, place.frame, until if is_range else None)


def _first_parting(stored: Sequence[str], present: Sequence[str]) -> int | None:
    """Where the second sequence has something else than the first; where it only has more or less counts if nothing else differs."""
    matcher = SequenceMatcher(None, stored, present, autojunk=False)
    partings = [(tag, start) for tag, _, _, start, _ in matcher.get_opcodes() if tag != "equal"]
    replaced = [start for tag, start in partings if tag == "replace"]
    starts = replaced or [start for _, start in partings]
    return min(starts[0], len(present) - 1) if starts else None


def origin_of_group(process: ProcessTrace, group: str, step: int) -> Place | None:
    """The op that gives a group its value at a step; None if it is not known.

    Args:
        process: Recorded op by op.
        group: A column of the golden.
        step: Which step.
    """
    roles = {"batches": Role.BATCH, "loss": Role.LOSS}
    for chunk in process.chunks():
        columns = chunk.columns
        ops = process.names.texts(Table.OP)
        at_step = columns["step"] == step
        wanted = at_step & (columns["role"] == roles.get(group, Role.STATE))
        for row in map(int, np.flatnonzero(wanted)):
            if group == "batches":
                return _place(process, _Operation("", chunk, row))
            if group == "loss" or ops[int(columns["op"][row])] == STEP_OP:
                return _producer(process, chunk, row, group)
        if chunk.rows and int(columns["step"][0]) > step:
            return None
    return None


def _producer(process: ProcessTrace, chunk: Chunk, row: int, group: str) -> Place | None:
    """The op that made the first input of a record, or the first one of a group that is held."""
    inputs = chunk.children["inputs"]
    positions = list(inputs.of(row))
    if group not in ("loss",):
        kinds = _held_kinds(process, chunk, row)
        singular = {
            "optimizer": "optimizer state",
            "parameters": "parameter",
            "gradients": "gradient",
            "buffers": "buffer",
        }
        positions = [at for at, kind in zip(positions, kinds, strict=False) if kind == singular.get(group)]
    for at in positions:
        distance = int(inputs.columns["producer"][at])
        if distance:
            found, index = process.record(chunk.number(row) - distance)
            return _place(process, _Operation("", found, index))
    return None


def _held_kinds(process: ProcessTrace, chunk: Chunk, row: int) -> list[str]:
    text = process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row])) or ""
    try:
        return [str(kind) for kind, _ in json.loads(text)]
    except (ValueError, TypeError):
        return []


def _place(process: ProcessTrace, operation: _Operation) -> Place:
    columns, row = operation.chunk.columns, operation.row
    stack = int(columns["forward_stack"][row])
    frames = process.names.stack(stack if stack != NONE else int(columns["stack"][row]))
    op = process.names.texts(Table.OP)[int(columns["op"][row])]
    return Place(op, int(columns["step"][row]), frames[0] if frames else None)
