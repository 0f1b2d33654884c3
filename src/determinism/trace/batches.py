"""Arrow record batches from the rows of a spool; the one place that defines the Arrow types of records."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from determinism.trace.schema import CHILD_COLUMNS, FORMAT, MOST_BATCH_BYTES, RECORD_COLUMNS, Column
from determinism.trace.spool import RECORDS, SpoolContent

_TYPES = {"i": pa.int32(), "b": pa.int8(), "digest": pa.binary(16)}


def _child_type(columns: tuple[Column, ...]) -> pa.StructType:
    return pa.struct([pa.field(c.name, _TYPES[c.code], nullable=False) for c in columns])


def _list_type(columns: tuple[Column, ...]) -> pa.ListType:
    return pa.list_(pa.field("item", _child_type(columns), nullable=False))


RECORD_SCHEMA = pa.schema(
    [pa.field(c.name, _TYPES[c.code], nullable=False) for c in RECORD_COLUMNS]
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


def batch_from_spool(content: SpoolContent) -> pa.RecordBatch:
    """The records in a spool.

    Raises:
        ValueError: Its numbers lead out of it.
    """
    records = content.rows(RECORDS, content.num_records)
    numbers = content.first_record + np.arange(content.num_records, dtype=np.int64)
    arrays = [_array(column, records, numbers) for column in RECORD_COLUMNS]
    for group, columns in CHILD_COLUMNS.items():
        offsets = np.zeros(content.num_records + 1, np.int32)
        offsets[1:] = content.ends(group)
        entries = content.rows(group, int(offsets[-1]))
        of_entries = np.repeat(numbers, np.diff(offsets))
        children = [_array(column, entries, of_entries) for column in columns]
        values = pa.StructArray.from_arrays(children, fields=list(_child_type(columns)))
        arrays.append(pa.ListArray.from_arrays(_fixed(pa.int32(), offsets), values))
    return pa.record_batch(
        [a.cast(f.type) if a.type != f.type else a for a, f in zip(arrays, RECORD_SCHEMA, strict=True)],
        schema=RECORD_SCHEMA,
    )


def _array(column: Column, rows: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> pa.Array:
    """One column of rows that belong to the records of these numbers."""
    cells = rows[column.name]
    if column.is_reference:
        cells = np.where(cells >= 0, numbers - cells, 0).astype(np.int32)
    return _fixed(_TYPES[column.code], cells)


def _fixed(kind: pa.DataType, cells: np.ndarray[Any, Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(cells), [None, pa.py_buffer(np.ascontiguousarray(cells))])


def batch_from_names(rows: Sequence[tuple[int, int, str]]) -> pa.RecordBatch:
    """Make a batch of names: table, number, text.

    The arrays are made from bytes: where pandas is installed, `pyarrow.array` would import it into the program.
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
    """A batch in parts of which a reader takes each; one row is never parted.

    Args:
        batch: Of records or names.
        most: How many bytes a part may take.
    """
    if batch.nbytes <= most or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from readable_parts(batch.slice(0, half), most)
    yield from readable_parts(batch.slice(half), most)


def written_bytes(batch: pa.RecordBatch) -> int:
    """How many bytes a batch takes in a stream of its own."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=WRITE_OPTIONS) as stream:
        stream.write_batch(batch)
    return int(sink.size())
