"""Opens a trace and gives its processes, records and names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from determinism.errors import TraceError
from determinism.trace import schema
from determinism.trace.batches import batch_from_spool
from determinism.trace.chunk import Chunk, chunk_from_batch, cut, join
from determinism.trace.names import Names
from determinism.trace.spool import read_spool
from determinism.types import Role


class _Place(NamedTuple):
    first: int
    rows: int
    offset: int


class ProcessTrace:
    """The records and names of one process of a run."""

    def __init__(self, folder: Path) -> None:
        """Open the folder of one process.

        Raises:
            TraceError: It was written by a newer version, or `process.json` cannot be read.
        """
        self.folder = folder
        self.key = folder.name
        self.description = _read_json(folder / schema.PROCESS_FILE)
        _check_format(self.description, folder)
        self._places: list[_Place] = []
        self._cached: tuple[int, Chunk] | None = None
        self._tail: Chunk | None = None
        self._source: Any = None
        self._schema: Any = None
        self.truncated = False

    @cached_property
    def names(self) -> Names:
        """The tables of names."""
        return Names(self.folder)

    def chunks(self) -> Iterator[Chunk]:
        """Every record in order, in the batches they were written in.

        A stream that breaks off gives its whole batches; then the spool of a killed process follows.
        """
        if self.description.get("steps_by") is not None:
            yield from self._stored_chunks()
            return
        batches = self._num_batches = 0
        for chunk in self._stored_chunks():
            # No step was counted: then batches count.
            upto = batches + np.cumsum(chunk.columns["role"] == Role.BATCH)
            batches = self._num_batches = int(upto[-1])
            yield replace(chunk, columns={**chunk.columns, "step": np.maximum(upto - 1, 0).astype(np.int32)})

    @property
    def steps_by(self) -> str | None:
        """What counted as a step; None before anything did."""
        found = self.description.get("steps_by")
        return None if found is None else str(found)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """How many records and steps there are; what a killed process could not count is counted here."""
        if self.description.get("ended") and "records" in self.description:
            return int(self.description["records"]), int(self.description["steps"])
        ops = self.names.texts(schema.Table.OP)
        step_op = ops.index(schema.STEP_OP) if schema.STEP_OP in ops else schema.NONE
        records = steps = 0
        for chunk in self.chunks():
            records += chunk.rows
            steps += int((chunk.columns["op"] == step_op).sum())
        return records, steps if self.steps_by is not None else self._num_batches

    _num_batches = 0

    def _stored_chunks(self) -> Iterator[Chunk]:
        self._open()
        self._places.clear()
        first = 0
        offset = self._start
        while (batch := self._read_batch(offset)) is not None:
            chunk = chunk_from_batch(first, batch)
            self._places.append(_Place(first, chunk.rows, offset))
            offset = self._source.tell()
            first += chunk.rows
            yield chunk
        content = read_spool(self.folder / schema.SPOOL_FILE)
        if content is not None and content.rows and content.first_record == first:
            self._tail = chunk_from_batch(first, batch_from_spool(content))
            yield self._tail

    def _open(self) -> None:
        if self._source is not None:
            return
        path = self.folder / schema.RECORDS_FILE
        try:
            self._source = pa.memory_map(str(path))
            self._schema = pa.ipc.read_schema(self._source)
        except (pa.ArrowInvalid, OSError, EOFError) as error:
            raise TraceError(
                "trace-truncated", f"{path} holds no readable stream of records ({error}). Record the run again."
            ) from None
        self._start = self._source.tell()

    def _read_batch(self, offset: int) -> pa.RecordBatch | None:
        self._source.seek(offset)
        try:
            message = pa.ipc.read_message(self._source)
            return pa.ipc.read_record_batch(message, self._schema)
        except EOFError:
            return None
        except (pa.ArrowInvalid, OSError):
            self.truncated = True
            return None

    def record(self, number: int) -> tuple[Chunk, int]:
        """The chunk that holds one record and its position there; `chunks` must have passed it."""
        chunk = self._chunk_of(number)
        return chunk, number - chunk.first

    def _chunk_of(self, number: int) -> Chunk:
        if self._cached is not None and 0 <= number - self._cached[1].first < self._cached[1].rows:
            return self._cached[1]
        if self._tail is not None and number >= self._tail.first:
            return self._tail
        low, high = 0, len(self._places) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._places[middle].first <= number else (low, middle - 1)
        place = self._places[low]
        batch = self._read_batch(place.offset)
        assert batch is not None
        chunk = chunk_from_batch(place.first, batch)
        self._cached = (low, chunk)
        return chunk

    def reader(self) -> RecordReader:
        """Read the records from the first on, in portions of any size."""
        return RecordReader(self.chunks())


class RecordReader:
    """Gives consecutive records in portions that the caller chooses."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._held: list[Chunk] = []
        self._rows = 0

    def peek(self, rows: int) -> Chunk | None:
        """Up to `rows` next records, without moving on; None at the end."""
        while self._rows < rows and (chunk := next(self._chunks, None)) is not None:
            self._held.append(chunk)
            self._rows += chunk.rows
        if not self._held:
            return None
        joined = join(self._held)
        self._held = [joined]
        return cut(joined, 0, min(rows, joined.rows))

    def advance(self, rows: int) -> None:
        """Move on by `rows` records that `peek` gave."""
        joined = self._held[0]
        self._rows -= rows
        self._held = [cut(joined, rows, joined.rows)] if rows < joined.rows else []


class Trace:
    """What one run recorded."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest

    @cached_property
    def processes(self) -> list[ProcessTrace]:
        """The processes that recorded, by key."""
        parent = self.folder / schema.PROCESSES_FOLDER
        folders = sorted(p for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []
        return [ProcessTrace(folder) for folder in folders if (folder / schema.PROCESS_FILE).exists()]


def open_trace(folder: Path) -> Trace:
    """Open a trace.

    Raises:
        TraceError: There is none, it is not ours, it is cut, or it was written by a newer version.
    """
    if not folder.is_dir():
        raise TraceError("trace-missing", f"{folder} is not a folder. Give the folder that `determinism record -o` wrote.")
    if not (folder / schema.MANIFEST_FILE).exists():
        raise TraceError(
            "trace-foreign",
            f"{folder} holds no {schema.MANIFEST_FILE}, so it is not a trace. Give the folder that `determinism record -o` wrote.",
        )
    manifest = _read_json(folder / schema.MANIFEST_FILE)
    _check_format(manifest, folder)
    return Trace(folder, manifest)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError("trace-foreign", f"{path} cannot be read as JSON ({error}), so this is not a whole trace.") from None
    if not isinstance(document, dict):
        raise TraceError("trace-foreign", f"{path} holds no JSON object, so this is not a trace.")
    return document


def _check_format(document: dict[str, Any], folder: Path) -> None:
    found = str(document.get("format", ""))
    name, _, version = found.partition("/")
    if name != "determinism.trace" or not version.isdigit():
        raise TraceError("trace-foreign", f"{folder} names the format {found!r}, so it is not a trace of this tool.")
    if int(version) > schema.VERSION:
        raise TraceError(
            "trace-newer",
            f"{folder} has the format {found!r}; this version reads up to {schema.FORMAT!r}. Update `determinism` to read it.",
        )
