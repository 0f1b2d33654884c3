"""Long traces, made from a recorded GPT: its first steps as they were, and then one step repeated with new digests.

Recording 10^8 records takes hours. A trace made here has the names, edges, layouts and sizes of a recorded one, and equally
incompressible digests; it is made with the functions of the trace layer, in a few minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import determinism
from determinism.trace.chunks import RECORD_SCHEMA, WRITE_OPTIONS, Array, Chunk, RecordReader, cut, join
from determinism.trace.files import create_trace, write_manifest
from determinism.trace.opening import open_trace
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import PROCESSES_FOLDER, RECORDS_FILE, STEP_OP, Table
from determinism.trace.writer import ProcessWriter

_RECORDED_STEPS = 4
_STEPS_AT_ONCE = 32
_REORDERED = {Table.OP: "op", Table.MODULE: "module", Table.ARGUMENTS: "arguments", Table.LAYOUT: "layout"}
"""Tables to whose rows only records refer, and the columns that do."""
_DIGESTS = {"outputs": 1, "input_digests": 2, "generators": 3}
"""Lists that hold digests, each with a number that keeps its digests distinct from those of the others."""


class Pattern(NamedTuple):
    """The parts of a long trace."""

    process: ProcessTrace
    beginning: Chunk
    step: Chunk
    """The last recorded step; in it every reference is to the same step or the one before."""
    end: Chunk


@dataclass(frozen=True)
class Variant:
    """How a long trace is written."""

    records: int
    """At least this many; the last step is complete."""
    rows_per_batch: int = 8192
    """A writer makes a batch after this many records, or earlier if a second has passed."""
    seed: int = 0
    """The seed of the digests of repeated steps."""
    flipped: int | None = None
    """One bit differs in the output of the first op at or after this record."""
    reversed_names: bool = False
    """Names are in a different order than recorded, so records hold different numbers."""


def record_pattern(folder: Path) -> Pattern:
    """Record a GPT with about 1,500 records a step. Needs PyTorch, unlike making traces from the pattern."""
    from gpt import Size, Trainer

    with determinism.record(folder):
        trainer = Trainer(Size(layers=9, width=32, heads=2, tokens=16, batch=2, vocabulary=64))
        for _ in range(_RECORDED_STEPS):
            trainer.step()
    (process,) = open_trace(folder).processes
    whole = join(list(process.chunks()))
    ends = np.flatnonzero(whole.columns["op"] == process.names.texts(Table.OP).index(STEP_OP)) + 1
    start, stop = int(ends[-2]), int(ends[-1])
    return Pattern(process, cut(whole, 0, stop), cut(whole, start, stop), cut(whole, stop, whole.rows))


def write_trace(folder: Path, pattern: Pattern, variant: Variant) -> int:
    """Write a long trace; returns how many records it has."""
    create_trace(folder, command=["gpt"], cwd="/", level="op")
    own = folder / PROCESSES_FOLDER / pattern.process.key
    own.mkdir()
    known = pattern.process.description
    writer = ProcessWriter(own, description={"level": "op", "steps_by": known["steps_by"], "framework": "torch"})
    sizes = {}
    for table in Table:
        texts = pattern.process.names.texts(table)
        sizes[table] = len(texts)
        for text in reversed(texts) if variant.reversed_names and table in _REORDERED else texts:
            writer.name(table, text)
    repeats = -(-(variant.records - pattern.beginning.rows) // pattern.step.rows)
    records = pattern.beginning.rows + repeats * pattern.step.rows + pattern.end.rows
    writer.describe(records=records, steps=_RECORDED_STEPS + repeats)
    writer.close()
    chunks = _chunks(pattern, repeats, variant.seed)
    if variant.flipped is not None:
        chunks = (_with_flipped_bit(chunk, variant.flipped) for chunk in chunks)
    if variant.reversed_names:
        chunks = (_with_reversed_names(chunk, sizes) for chunk in chunks)
    _write_records(own / RECORDS_FILE, RecordReader(chunks), variant.rows_per_batch)
    facts = {"command": ["gpt"], "cwd": "/", "level": "op", "exit_status": 0, "seconds": 0.0}
    write_manifest(folder, {**facts, "complete": True})
    return records


def _chunks(pattern: Pattern, repeats: int, seed: int) -> Iterator[Chunk]:
    """Everything that a long trace holds, before it is changed."""
    yield pattern.beginning
    first = pattern.beginning.rows
    for done in range(0, repeats, _STEPS_AT_ONCE):
        count = min(_STEPS_AT_ONCE, repeats - done)
        repeated = join([pattern.step] * count)
        for group, stream in _DIGESTS.items():
            # Zeros represent bytes without a meaning, and stay.
            old = repeated.children[group].columns["digest"]
            fresh = np.random.default_rng((seed, stream, done)).integers(2**64, size=old.shape, dtype=np.uint64)
            repeated = _with_columns(repeated, group, digest=np.where(old.any(axis=1, keepdims=True), fresh, old))
        steps = np.repeat(np.arange(count, dtype=np.int32) + _RECORDED_STEPS + done, pattern.step.rows)
        yield replace(repeated, first=first, columns={**repeated.columns, "step": steps})
        first += repeated.rows
    step = np.full(pattern.end.rows, _RECORDED_STEPS + repeats, dtype=np.int32)
    yield replace(pattern.end, first=first, columns={**pattern.end.columns, "step": step})


def _write_records(path: Path, reader: RecordReader, rows_per_batch: int) -> None:
    with path.open("wb") as file, pa.ipc.new_stream(file, RECORD_SCHEMA, options=WRITE_OPTIONS) as stream:
        while (chunk := reader.peek(rows_per_batch)) is not None:
            stream.write_batch(_batch(chunk))
            reader.advance(chunk.rows)


def _batch(chunk: Chunk) -> pa.RecordBatch:
    """The inverse of `chunk_from_batch`."""

    def array(kind: pa.DataType, cells: Array) -> pa.Array:
        return pa.Array.from_buffers(kind, len(cells), [None, pa.py_buffer(np.ascontiguousarray(cells))])

    arrays = []
    for field in RECORD_SCHEMA:
        if field.name in chunk.columns:
            arrays.append(array(field.type, chunk.columns[field.name]))
            continue
        entries, columns = chunk.children[field.name], list(field.type.value_type)
        values = [array(column.type, entries.columns[column.name]) for column in columns]
        ends = array(pa.int32(), entries.starts.astype(np.int32))
        lists = pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(values, fields=columns))
        arrays.append(lists.cast(field.type))
    return pa.record_batch(arrays, schema=RECORD_SCHEMA)


def _with_flipped_bit(chunk: Chunk, record: int) -> Chunk:
    if not chunk.first <= record < chunk.first + chunk.rows:
        return chunk
    outputs = chunk.children["outputs"]
    digests = outputs.columns["digest"].copy()
    at = int(outputs.starts[record - chunk.first])
    while not digests[at].any():
        at += 1
    digests[at, 0] ^= np.uint64(1)
    return _with_columns(chunk, "outputs", digest=digests)


def _with_reversed_names(chunk: Chunk, sizes: dict[Table, int]) -> Chunk:
    def reversed_numbers(table: Table, cells: Array) -> Array:
        return np.where(cells >= 0, sizes[table] - 1 - cells, cells).astype(cells.dtype)

    own = {name: reversed_numbers(t, chunk.columns[name]) for t, name in _REORDERED.items() if name in chunk.columns}
    for group in ("inputs", "outputs"):
        layouts = chunk.children[group].columns["layout"]
        chunk = _with_columns(chunk, group, layout=reversed_numbers(Table.LAYOUT, layouts))
    return replace(chunk, columns={**chunk.columns, **own})


def _with_columns(chunk: Chunk, group: str, **columns: Array) -> Chunk:
    """Replace columns in one of the lists."""
    entries = chunk.children[group]
    return replace(chunk, children={**chunk.children, group: entries._replace(columns={**entries.columns, **columns})})
