"""Looks up in a whole process what it held, drew and was given."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from determinism.comparison.first_step import of_step
from determinism.comparison.origins import Entry, entry
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import LOAD_OP, Table
from determinism.types import Role

_GATHERS = frozenset(
    {"aten::index", "aten::index_select", "aten::gather", "aten::take", "aten::stack", "aten::cat", "aten::slice_copy"}
)
"""What takes samples out of the data where there is no data loader."""
_SEED_OF_LOADER = "aten::random_"
"""What an iterator of a DataLoader draws when it is made."""


def digests(process: ProcessTrace, *, upto_step: int, of_loads: bool = False) -> set[bytes]:
    """What records read or gave; or what was loaded from files, which does not mean that it was taken up."""
    ops = process.names.texts(Table.OP)
    load = ops.index(LOAD_OP) if LOAD_OP in ops else -1
    found: set[bytes] = set()
    for chunk in process.chunks():
        rows = int((chunk.columns["step"] <= upto_step).sum())
        is_wanted = (chunk.columns["op"] == load) == of_loads
        for place in ("outputs", "input_digests"):
            children = chunk.children[place]
            owner = np.repeat(np.arange(chunk.rows), np.diff(children.starts))
            wanted = children.columns["digest"][is_wanted[owner] & (owner < rows)]
            found.update(row.tobytes() for row in wanted)
        if rows < chunk.rows:
            break
    return found


def drawn_from(process: ProcessTrace, upto_step: int) -> list[bytes]:
    """The states of generators from which ops drew, in order."""
    found: list[bytes] = []
    for chunk in process.chunks():
        generators = chunk.children["generators"]
        owner = np.repeat(np.arange(chunk.rows), np.diff(generators.starts))
        is_wanted = (chunk.columns["role"] == Role.OP) & (chunk.columns["step"] <= upto_step)
        found += [row.tobytes() for row in generators.columns["digest"][is_wanted[owner]]]
    return found


def seeds_of_epoch(process: ProcessTrace, step: int) -> set[bytes]:
    """The states of generators from which a data loader drew its seeds in a step, before its first batch there."""
    chunk = of_step(process, step)
    if chunk is None:
        return set()
    ops = process.names.texts(Table.OP)
    seed = ops.index(_SEED_OF_LOADER) if _SEED_OF_LOADER in ops else -1
    batches = np.flatnonzero(chunk.columns["role"] == Role.BATCH)
    rows = np.flatnonzero(chunk.columns["op"] == seed)
    generators = chunk.children["generators"]
    return {
        generators.columns["digest"][at].tobytes()
        for row in (rows[rows < batches[0]] if len(batches) else rows)
        for at in range(int(generators.starts[row]), int(generators.starts[row + 1]))
    }


def batches_of(process: ProcessTrace) -> set[tuple[bytes, ...]]:
    """The digests of each batch that a data loader gave."""
    found = set()
    for chunk in process.chunks():
        for row in np.flatnonzero(chunk.columns["role"] == Role.BATCH):
            found.add(tuple(output.digest for output in entry(process, chunk, int(row)).outputs))
    return found


def gathered(process: ProcessTrace) -> set[bytes]:
    """The digests of what was taken out of other tensors, as samples are out of the data."""
    ops = [number for number, op in enumerate(process.names.texts(Table.OP)) if op.partition(".")[0] in _GATHERS]
    found: set[bytes] = set()
    for chunk in process.chunks():
        outputs = chunk.children["outputs"]
        owner = np.repeat(np.arange(chunk.rows), np.diff(outputs.starts))
        found.update(row.tobytes() for row in outputs.columns["digest"][np.isin(chunk.columns["op"], ops)[owner]])
    return found


def first_of(process: ProcessTrace, step: int, op: str, module: str | None) -> Entry | None:
    """The first record of an op in a step; None if there is none."""
    chunk = of_step(process, step)
    found = () if chunk is None else (entry(process, chunk, row) for row in range(chunk.rows))
    return next((one for one in found if one.op == op and one.module == module), None)


def read_by(process: ProcessTrace, record: Entry) -> set[bytes]:
    """The digests of what a record read, as far as they are known."""
    found = set()
    for one in record.reads:
        outputs = entry(process, *process.record(one.producer)).outputs if one.producer >= 0 else ()
        digest = outputs[one.output].digest if one.output < len(outputs) else one.digest
        found |= {digest} if digest is not None else set()
    return found


def made(record: Entry) -> list[bytes]:
    """The digests of what a record gave."""
    return [output.digest for output in record.outputs]


def added_to_gradients(process: ProcessTrace, records: Iterable[int]) -> bool:
    """Whether one of some additions of a backward gave something else than what it added: a gradient was there, and not zero.

    Args:
        process: The whole of the run.
        records: Numbers of the additions, and of others, which do not count.
    """
    for number in records:
        one = entry(process, *process.record(int(number)))
        if len(one.inputs) != 2 or not one.outputs:
            continue
        added = one.inputs[1]
        given = entry(process, *process.record(added.producer)).outputs if added.producer >= 0 else ()
        is_known = added.output < len(given) and given[added.output].layout == added.layout
        if is_known and given[added.output].digest != one.outputs[0].digest:
            return True
    return False
