"""Records as Arrow batches, whose types are defined here, and as NumPy columns, which comparing works on; and the tables of the names in
them: ops, modules, frames, stacks, arguments, layouts.
"""

from __future__ import annotations

import itertools
import json
import operator
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from determinism.errors import TraceError
from determinism.op_semantics import Op, OpSemantics, semantics_from, semantics_of
from determinism.trace.schema import (
    CHILD_COLUMNS,
    FIRST_WITH_SEMANTICS,
    FORMAT,
    MOST_BATCH_BYTES,
    NONE,
    RECORD_COLUMNS,
    SHARED,
    VERSION,
    Column,
    Frame,
    Layout,
    Table,
)

# Arrow batches, as stored in files.

CELL_TYPES = {"i": pa.int32(), "b": pa.int8(), "digest": pa.binary(16)}
"""The type of a column's cells, by the column's code."""


def child_type(columns: tuple[Column, ...]) -> pa.StructType:
    """The type of one entry of a list within a record."""
    return pa.struct([pa.field(c.name, CELL_TYPES[c.code], nullable=False) for c in columns])


def _list_type(columns: tuple[Column, ...]) -> pa.ListType:
    return pa.list_(pa.field("item", child_type(columns), nullable=False))


RECORD_SCHEMA = pa.schema(
    [pa.field(c.name, CELL_TYPES[c.code], nullable=False) for c in RECORD_COLUMNS]
    + [pa.field(group, _list_type(columns), nullable=False) for group, columns in CHILD_COLUMNS.items()],
    metadata={"format": FORMAT},
)

NAMES_SCHEMA = pa.schema(
    [
        pa.field("table", pa.int8(), nullable=False),
        pa.field("number", pa.int32(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ],
    metadata={"format": FORMAT},
)

WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def batch_from_names(rows: Sequence[tuple[int, int, str]]) -> pa.RecordBatch:
    """Make a batch of names: table, number, text.

    The arrays are made from bytes: if pandas is installed, `pyarrow.array` would import it into the program.
    """
    texts = [text.encode() for _, _, text in rows]
    ends = array("i", itertools.accumulate(map(len, texts), initial=0))
    columns = [
        pa.Array.from_buffers(pa.int8(), len(rows), [None, pa.py_buffer(array("b", [row[0] for row in rows]))]),
        pa.Array.from_buffers(pa.int32(), len(rows), [None, pa.py_buffer(array("i", [row[1] for row in rows]))]),
        pa.StringArray.from_buffers(len(rows), pa.py_buffer(ends), pa.py_buffer(b"".join(texts))),
    ]
    return pa.record_batch(columns, schema=NAMES_SCHEMA)


def readable_parts(batch: pa.RecordBatch, most: int = MOST_BATCH_BYTES // 2) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts of at most so many bytes, as a reader accepts; a single row is never split."""
    if batch.nbytes <= most or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from readable_parts(batch.slice(0, half), most)
    yield from readable_parts(batch.slice(half), most)


def written_bytes(batch: pa.RecordBatch) -> int:
    """Size in bytes of a stream with only this batch."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=WRITE_OPTIONS) as stream:
        stream.write_batch(batch)
    return int(sink.size())


# NumPy columns, as comparing reads them.

Array = np.ndarray[Any, Any]


class Children(NamedTuple):
    """The list entries of all records of a chunk as columns, and where each record's entries are."""

    starts: Array
    """int64, one more than there are records: entries of record r are `starts[r]:starts[r + 1]`."""
    columns: dict[str, Array]
    """int32 or int8 cells; digests as uint64 pairs of shape (entries, 2)."""

    def of(self, row: int) -> range:
        """Positions of the entries of a record."""
        return range(int(self.starts[row]), int(self.starts[row + 1]))

    def part(self, row: int) -> slice:
        """The entries of a record, as a slice of a column."""
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def digests_of(self, row: int) -> list[bytes]:
        """The digests among the entries of a record."""
        return [digest.tobytes() for digest in self.columns["digest"][self.part(row)]]

    def spread(self, cells: Array) -> Array:
        """Repeat a cell per record for each entry of that record."""
        return np.repeat(cells, self.counts)

    @property
    def counts(self) -> Array:
        """The number of entries of each record."""
        return np.diff(self.starts)

    @property
    def owners(self) -> Array:
        """The position of each entry's record."""
        return self.spread(np.arange(len(self.starts) - 1))

    @property
    def places(self) -> Array:
        """The index of each entry in the list of its record, from 0."""
        return np.arange(int(self.starts[-1])) - self.spread(self.starts[:-1])


@dataclass(frozen=True)
class Chunk:
    """Consecutive records, or picked ones."""

    first: int
    """Number of the first record."""
    rows: int
    columns: dict[str, Array]
    children: dict[str, Children]
    picked: Array | None = None
    """The number of each record, if they are not consecutive."""

    @property
    def numbers(self) -> Array:
        """The number of each record."""
        return np.arange(self.first, self.first + self.rows, dtype=np.int64) if self.picked is None else self.picked

    def number(self, row: int) -> int:
        """The number of the record at a position."""
        return self.first + row if self.picked is None else int(self.picked[row])


_DTYPES: dict[str, type[np.generic]] = {"b": np.int8, "i": np.int32, "digest": np.uint64}


def _cells(array: pa.Array, code: str) -> Array:
    """Return the cells of a column without nulls. Arrow's own conversion would import pandas where that is installed."""
    width = 2 if code == "digest" else 1
    data, end = array.buffers()[1], width * (array.offset + len(array))
    # A buffer may be longer than its content.
    is_empty = data is None or not end
    flat: Array = np.zeros(0, _DTYPES[code]) if is_empty else np.frombuffer(data, dtype=_DTYPES[code], count=end)
    cells = flat[width * array.offset :]
    return cells.reshape(-1, 2) if code == "digest" else cells


def chunk_from_batch(first: int, batch: pa.RecordBatch) -> Chunk:
    """View a record batch as NumPy columns, without copying cells."""
    columns = {c.name: _cells(batch.column(c.name), c.code) for c in RECORD_COLUMNS}
    children = {}
    for group, described in CHILD_COLUMNS.items():
        lists = batch.column(group)
        starts = _cells(lists.offsets, "i").astype(np.int64)
        values = lists.values
        entries = {c.name: _cells(values.field(i), c.code) for i, c in enumerate(described)}
        low, high = int(starts[0]), int(starts[-1])
        children[group] = Children(starts - low, {name: cells[low:high] for name, cells in entries.items()})
    return Chunk(first, batch.num_rows, columns, children)


def join(chunks: list[Chunk]) -> Chunk:
    """One chunk from consecutive ones, or from picked ones in order."""
    if len(chunks) == 1:
        return chunks[0]
    columns = {name: np.concatenate([c.columns[name] for c in chunks]) for name in chunks[0].columns}
    children = {}
    for group in chunks[0].children:
        parts = [c.children[group] for c in chunks]
        ends = np.cumsum([0] + [int(p.starts[-1]) for p in parts])
        starts = np.concatenate([p.starts[:-1] + end for p, end in zip(parts, ends[:-1], strict=True)] + [ends[-1:]])
        children[group] = Children(
            starts, {name: np.concatenate([p.columns[name] for p in parts]) for name in parts[0].columns}
        )
    picked = None if all(c.picked is None for c in chunks) else np.concatenate([c.numbers for c in chunks])
    return Chunk(chunks[0].first, sum(c.rows for c in chunks), columns, children, picked)


def cut(chunk: Chunk, start: int, stop: int) -> Chunk:
    """Records `start` to `stop` (positions within the chunk)."""
    if start == 0 and stop == chunk.rows:
        return chunk
    columns = {name: cells[start:stop] for name, cells in chunk.columns.items()}
    children = {}
    for group, entries in chunk.children.items():
        low, high = int(entries.starts[start]), int(entries.starts[stop])
        children[group] = Children(
            entries.starts[start : stop + 1] - low, {name: cells[low:high] for name, cells in entries.columns.items()}
        )
    return Chunk(chunk.first + start, stop - start, columns, children)


def pick(chunk: Chunk, rows: Array) -> Chunk:
    """Some records of a chunk, by their positions in it."""
    children = {}
    for group, entries in chunk.children.items():
        counts = entries.counts[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        at = np.arange(starts[-1]) + np.repeat(entries.starts[rows] - starts[:-1], counts)
        children[group] = Children(starts, {name: cells[at] for name, cells in entries.columns.items()})
    columns = {name: cells[rows] for name, cells in chunk.columns.items()}
    numbers = chunk.numbers[rows]
    return Chunk(int(numbers[0]) if len(numbers) else chunk.first, len(rows), columns, children, numbers)


class RecordReader:
    """Reads consecutive records in portions that the caller chooses."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._held: Chunk | None = None
        self._passed = 0
        """How many of the held records have been passed."""

    def at_hand(self) -> Chunk | None:
        """The next records that are already in one chunk, as views, without advancing; None at the end."""
        if self._held is None:
            self._held, self._passed = next(self._chunks, None), 0
        return None if self._held is None else cut(self._held, self._passed, self._held.rows)

    def peek(self, rows: int) -> Chunk | None:
        """The next records, at most `rows`, without advancing; None at the end."""
        if self._held is None or self._held.rows - self._passed < rows:
            self._join(rows)
        if self._held is None:
            return None
        return cut(self._held, self._passed, min(self._passed + rows, self._held.rows))

    def _join(self, rows: int) -> None:
        """Join chunks until at least this many records are held, or none are left."""
        chunk = self.at_hand()
        if chunk is None:
            return
        parts, count = [chunk], chunk.rows
        while count < rows and (following := next(self._chunks, None)) is not None:
            parts.append(following)
            count += following.rows
        if len(parts) > 1:
            self._held, self._passed = join(parts), 0

    def advance(self, rows: int) -> None:
        """Advance by `rows` records that `at_hand` or `peek` returned."""
        self._passed += rows
        if self._held is not None and self._passed >= self._held.rows:
            self._held = None


# From the messages of a stream to chunks of records.


def is_whole(batch: pa.RecordBatch) -> bool:
    """Whether the buffers of a batch have the sizes that its lengths require, and no value is null."""
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        return False
    for column in batch.columns:
        parts = [column, column.values, *column.values.flatten()] if isinstance(column, pa.ListArray) else [column]
        if any(part.null_count for part in parts):
            return False
    return True


class _Decoded(NamedTuple):
    first: int
    message: Any
    chunk: Chunk | None


class Decoder:
    """Decodes messages; returns the same chunk again for a message that equals the last one in every byte.

    Two runs that did the same write the same bytes, as long as their batches end at the same records. If one decoder
    serves both, the work is halved, and a caller that gets the same chunk twice need not compare its content.
    """

    def __init__(self) -> None:
        self._last: _Decoded | None = None

    def chunk(self, first: int, message: Any) -> Chunk | None:
        """The records of a message; None if the message cannot be what was written.

        Args:
            first: Number of its first record.
            message: As read from a stream, compressed.
        """
        last = self._last
        if last is None or first != last.first or not message.equals(last.message):
            last = self._last = _Decoded(first, message, _decode(first, message))
        return last.chunk


def _decode(first: int, message: Any) -> Chunk | None:
    try:
        batch = pa.ipc.read_record_batch(message, RECORD_SCHEMA)
    except (pa.ArrowException, OSError):
        return None
    return chunk_from_batch(first, batch) if is_whole(batch) else None


# Tables of names.


_Parsed = TypeVar("_Parsed")
_TABLES = frozenset(table.value for table in Table)


class Names:
    """All names of one process, by table and number."""

    def __init__(self, folder: Path, rows: Iterable[tuple[Any, ...]], *, version: int = VERSION) -> None:
        """Sort them by table.

        Args:
            folder: Folder of the process, for messages.
            rows: Table, number, text, in the order in which they were written.
            version: Version of the format in which they were written.
        """
        self.folder = folder
        self._version = version
        self._texts: dict[Table, list[str]] = {table: [] for table in Table}
        for table, number, text in rows:
            # Damaged rows are left out; records that need them are not read either.
            if isinstance(table, int) and table in _TABLES and isinstance(text, str):
                texts = self._texts[Table(table)]
                if number == len(texts):
                    texts.append(text)

    def texts(self, table: Table) -> list[str]:
        """Every row of a table, by number."""
        return self._texts[table]

    def text(self, table: Table, number: int) -> str | None:
        """One row; None for `NONE`."""
        texts = self._texts[table]
        return texts[number] if NONE < number < len(texts) else None

    @cached_property
    def ops(self) -> list[Op]:
        """Every op, by number, with what it does.

        Raises:
            TraceError: The trace is damaged.
        """
        names = self._texts[Table.OP]
        if self._version < FIRST_WITH_SEMANTICS:
            return [Op(name, semantics_of(name)) for name in names]
        meanings = self._texts[Table.SEMANTICS]
        if len(meanings) < len(names):
            raise _damaged(self.folder, f"what {names[len(meanings)][:60]!r} does is missing")
        return [
            Op(*pair) for pair in zip(names, (self._parsed(semantics_from, text) for text in meanings), strict=False)
        ]

    def op(self, number: int) -> Op:
        """One op.

        Raises:
            TraceError: The trace is damaged.
        """
        return self.ops[number]

    def ops_that(self, meanings: OpSemantics) -> list[int]:
        """The numbers of the ops that do one of these things.

        Raises:
            TraceError: The trace is damaged.
        """
        return [number for number, op in enumerate(self.ops) if op.semantics & meanings]

    @cached_property
    def frames(self) -> list[Frame]:
        """The frames of user code.

        Raises:
            TraceError: The trace is damaged.
        """
        return [self._parsed(_parse_frame, text) for text in self._texts[Table.FRAME]]

    @cached_property
    def stack_frames(self) -> list[tuple[int, ...]]:
        """The numbers of each stack's frames, innermost first.

        Raises:
            TraceError: The trace is damaged.
        """
        stacks = [self._parsed(_parse_stack, text) for text in self._texts[Table.STACK]]
        if any(not 0 <= number < len(self.frames) for stack in stacks for number in stack):
            raise _damaged(self.folder, "a stack names a frame that does not exist")
        return stacks

    def stack(self, number: int) -> tuple[Frame, ...]:
        """The frames of one stack, innermost first; empty for `NONE`."""
        if not NONE < number < len(self.stack_frames):
            return ()
        return tuple(self.frames[frame] for frame in self.stack_frames[number])

    def frame(self, text: str) -> Frame:
        """Parse a frame that is stored outside of these tables, as JSON.

        Raises:
            TraceError: The trace is damaged.
        """
        return self._parsed(_parse_frame, text)

    def layout(self, number: int) -> Layout | None:
        """One layout; None for `NONE` and for values that are not tensors.

        Raises:
            TraceError: The trace is damaged.
        """
        text = self.text(Table.LAYOUT, number)
        return None if text is None else self._parsed(parse_layout, text)

    def _parsed(self, parse: Callable[[str], _Parsed], text: str) -> _Parsed:
        try:
            return parse(text)
        except (ValueError, TypeError, RecursionError):
            raise _damaged(self.folder, f"{text[:60]!r} is not a valid entry") from None


def _damaged(folder: Path, found: str) -> TraceError:
    return TraceError(
        "trace-damaged",
        f"The names in {folder} cannot be read ({found}), so this trace is damaged. Record the run again.",
    )


def _parse_frame(text: str) -> Frame:
    file, line, function, code = json.loads(text)
    if not (isinstance(line, int) and all(isinstance(part, str) for part in (file, function, code))):
        raise TypeError(text)
    return Frame(file, line, function, code)


def _parse_stack(text: str) -> tuple[int, ...]:
    return tuple(operator.index(number) for number in json.loads(text))


_LARGEST = 1 << 62
"""Limit on the sizes, strides and offsets in a layout."""


@lru_cache(maxsize=4096)
def parse_layout(text: str) -> Layout | None:
    """Parse the text of a layout.

    Raises:
        ValueError: It is not a layout.
        TypeError: It is not a layout.
    """
    fields: list[Any] = json.loads(text)
    if len(fields) not in (6, 7):
        return None
    dtype, shape, strides, offset, device, storage_bytes, *rest = fields
    if not (isinstance(dtype, str) and isinstance(device, str) and rest in ([], [SHARED])):
        raise TypeError(text)
    sizes = (tuple(map(operator.index, shape)), tuple(map(operator.index, strides)))
    place = (operator.index(offset), operator.index(storage_bytes))
    # Danger: memory is viewed with these numbers, so invalid ones must not get through.
    if any(not 0 <= number <= _LARGEST for number in (*sizes[0], *sizes[1], *place)):
        raise ValueError(text)
    layout = Layout(dtype, *sizes, place[0], device, place[1], bool(rest))
    if not layout.is_view and (layout.strides or any(place)):
        raise ValueError(text)
    return layout
