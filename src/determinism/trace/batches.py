"""From columns of bytes to Arrow record batches; the one place that says how records look as Arrow types."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from determinism.trace.schema import CHILD_COLUMNS, FORMAT, RECORD_COLUMNS, Column
from determinism.trace.spool import Section, SpoolContent

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


def _array(column: Column, length: int, raw: bytes) -> pa.Array:
    return pa.Array.from_buffers(_TYPES[column.code], length, [None, pa.py_buffer(raw)])


def batch_from_cells(rows: int, layout: list[Section], cells: Callable[[Section, int], bytes]) -> pa.RecordBatch:
    """Make a record batch of `rows` records.

    Args:
        rows: Number of records.
        layout: The columns of the spool.
        cells: Gives the first n cells of a column as bytes.
    """
    by_group: dict[str, list[Section]] = {}
    for section in layout:
        by_group.setdefault(section.group, []).append(section)
    arrays = [_array(s.column, rows, cells(s, rows)) for s in by_group["record"]]
    ends = {s.column.name: cells(s, rows) for s in by_group["end"]}
    for group, columns in CHILD_COLUMNS.items():
        offsets = bytes(4) + ends[group]
        length = int.from_bytes(offsets[-4:], "little")
        children = [_array(s.column, length, cells(s, length)) for s in by_group[group]]
        values = pa.StructArray.from_arrays(children, fields=list(_child_type(columns)))
        arrays.append(
            pa.ListArray.from_arrays(pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(offsets)]), values)
        )
    return pa.record_batch(
        [a.cast(f.type) if a.type != f.type else a for a, f in zip(arrays, RECORD_SCHEMA, strict=True)],
        schema=RECORD_SCHEMA,
    )


def written_bytes(batch: pa.RecordBatch) -> int:
    """How many bytes a batch takes in a stream of its own."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=WRITE_OPTIONS) as stream:
        stream.write_batch(batch)
    return int(sink.size())


def batch_from_spool(content: SpoolContent) -> pa.RecordBatch:
    """The records that a process left in its spool.

    Raises:
        ValueError: Its numbers lead out of it.
    """

    def cells(section: Section, count: int) -> bytes:
        if count > section.capacity:
            raise ValueError(f"{count} cells of {section.column.name} in room for {section.capacity}")
        return content.data[section.offset : section.offset + section.column.width * count]

    return batch_from_cells(content.rows, content.layout, cells)
