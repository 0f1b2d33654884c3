"""Arrow record batches: of records, of which this is the one place that defines the Arrow types, and of names."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence

import pyarrow as pa

from determinism.trace.schema import CHILD_COLUMNS, FORMAT, MOST_BATCH_BYTES, RECORD_COLUMNS, Column

CELL_TYPES = {"i": pa.int32(), "b": pa.int8(), "digest": pa.binary(16)}
"""Per code of a column the type of its cells."""


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
