"""Tells whether a batch of records can be what a writer wrote, before anything relies on its numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from determinism.trace.chunk import Array, Chunk
from determinism.trace.names import Names
from determinism.trace.schema import NONE, Table
from determinism.types import Access, Phase, Role

_LARGEST = 2**31 - 1


def is_whole(batch: pa.RecordBatch) -> bool:
    """Whether the buffers of a batch have the sizes that its lengths ask for, and nothing is missing in them."""
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        return False
    for column in batch.columns:
        parts = [column, column.values, *column.values.flatten()] if isinstance(column, pa.ListArray) else [column]
        if any(part.null_count for part in parts):
            return False
    return True


def is_sound(chunk: Chunk, names: Names) -> bool:
    """Whether every number in a chunk stands for something that is there."""
    return all(_lies_within(cells, low, high) for cells, low, high in _limits(chunk, names)) and _points_back(chunk)


def _limits(chunk: Chunk, names: Names) -> Iterator[tuple[Array, int, int]]:
    """Each column of numbers with the lowest and highest number it may hold."""
    columns, inputs = chunk.columns, chunk.children["inputs"].columns
    sizes = {table: len(names.texts(table)) - 1 for table in Table}
    yield columns["op"], 0, sizes[Table.OP]
    yield columns["module"], NONE, sizes[Table.MODULE]
    yield columns["stack"], NONE, sizes[Table.STACK]
    yield columns["forward_stack"], NONE, sizes[Table.STACK]
    yield columns["arguments"], NONE, sizes[Table.ARGUMENTS]
    yield inputs["layout"], NONE, sizes[Table.LAYOUT]
    yield chunk.children["outputs"].columns["layout"], NONE, sizes[Table.LAYOUT]
    yield columns["phase"], min(Phase), max(Phase)
    yield columns["role"], min(Role), max(Role)
    yield inputs["access"], min(Access), max(Access)
    yield columns["thread"], 0, _LARGEST
    yield columns["step"], 0, _LARGEST
    yield inputs["output"], 0, _LARGEST
    yield chunk.children["input_digests"].columns["position"], 0, _LARGEST


def _lies_within(cells: Array, low: int, high: int) -> bool:
    return not len(cells) or (int(cells.min()) >= low and int(cells.max()) <= high)


def _points_back(chunk: Chunk) -> bool:
    """Whether every distance to an earlier record leads to one."""
    inputs = chunk.children["inputs"]
    distances = (chunk.columns["forward"], inputs.columns["producer"])
    if any(not _lies_within(cells, 0, _LARGEST) for cells in distances):
        return False
    if all(_lies_within(cells, 0, chunk.first) for cells in distances):
        return True
    numbers = chunk.first + np.arange(chunk.rows, dtype=np.int64)
    of_entries = np.repeat(numbers, np.diff(inputs.starts))
    return bool((distances[0] <= numbers).all() and (distances[1] <= of_entries).all())
