"""Writes the trace of one process: records and names, streamed, in constant memory."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from determinism.trace import schema
from determinism.trace.batches import NAMES_SCHEMA, RECORD_SCHEMA, WRITE_OPTIONS, batch_from_cells
from determinism.trace.files import write_json
from determinism.trace.schema import Table
from determinism.trace.spool import Section, Spool

_ROWS_WORTH_A_BATCH = 2048


class ProcessWriter:
    """Appends records of one process to its folder.

    A record is in the file when `append` returns, also if the process is killed the next moment (see `spool`).
    When the disk is full or the limit reached, writing stops for good and `stopped_by` says why.
    """

    def __init__(self, folder: Path, *, description: dict[str, Any], max_bytes: int | None = None) -> None:
        """Create the folder's files.

        Args:
            folder: An existing folder that belongs to this process alone.
            description: What `process.json` says about the process.
            max_bytes: The trace of this process never grows past this many bytes.

        Raises:
            OSError: The files cannot be created.
        """
        self.folder = folder
        self.stopped_by: str | None = None
        self._max_bytes = max_bytes
        self._description = description
        self._blind_spots: dict[tuple[str, str, str], int] = {}
        self._lock = threading.RLock()
        self._names: list[tuple[int, int, str]] = []
        self._counts = [0] * len(Table)
        self._records_file = (folder / schema.RECORDS_FILE).open("wb")
        self._names_file = (folder / schema.NAMES_FILE).open("wb")
        self._pending = (folder / schema.PENDING_NAMES_FILE).open("wb", buffering=0)
        self._records: Any = pa.ipc.new_stream(self._records_file, RECORD_SCHEMA, options=WRITE_OPTIONS)
        self._names_stream: Any = pa.ipc.new_stream(self._names_file, NAMES_SCHEMA, options=WRITE_OPTIONS)
        self._records_file.flush()
        self._names_file.flush()
        self._flushed = 0
        self._last_flush = time.monotonic()
        self._open_spool(8192, 65536)
        self._write_description(ended=False)

    def _open_spool(self, record_capacity: int, child_capacity: int) -> None:
        self._spool = spool = Spool(self.folder / schema.SPOOL_FILE, record_capacity, child_capacity)
        spool.restart(self._flushed)
        columns = [spool.view(section) for section in spool.layout]
        records = len(schema.RECORD_COLUMNS)
        self._record_columns = columns[:records]
        self._input_ends, self._producer, self._output, self._access, self._input_layout = columns[records : records + 5]
        self._digest_ends, self._position, self._input_digest = columns[records + 5 : records + 8]
        self._output_ends, self._output_layout, self._output_digest = columns[records + 8 : records + 11]
        self._generator_ends, self._generator = columns[records + 11 :]
        self._rows = self._inputs = self._digests = self._outputs = self._generators = 0

    @property
    def num_records(self) -> int:
        """How many records were written."""
        return self._flushed + self._rows

    def name(self, table: Table, text: str) -> int:
        """Add a row to a table of names and return its number."""
        with self._lock:
            number = self._counts[table]
            self._counts[table] = number + 1
            self._names.append((int(table), number, text))
            if self.stopped_by is None:
                try:
                    self._pending.write(json.dumps([int(table), number, text]).encode() + b"\n")
                except OSError as error:
                    self._stop("disk-full", str(error))
            return number

    def append(
        self,
        cells: tuple[int, ...],
        inputs: Sequence[int] = (),
        input_digests: Sequence[tuple[int, bytes]] = (),
        outputs: Sequence[tuple[int, bytes]] = (),
        generators: Sequence[bytes] = (),
    ) -> int:
        """Append one record.

        Args:
            cells: One number per column of `schema.RECORD_COLUMNS`; `forward` as the forward record's number or -1.
            inputs: Flat fours: number of the producing record or -1, its output, access, layout.
            input_digests: Position of an input and the digest of the bytes it held.
            outputs: Layout and digest of each output.
            generators: Digests of generator states: of the op's generator before it drew, or of all at the end of a step.

        Returns:
            The number of the record.
        """
        with self._lock:
            if (
                self._rows >= self._spool.record_capacity
                or self._inputs + len(inputs) // 4 > self._spool.child_capacity
                or self._outputs + len(outputs) > self._spool.child_capacity
                or self._digests + len(input_digests) > self._spool.child_capacity
            ):
                self._make_room(max(len(inputs) // 4, len(outputs), len(input_digests)))
            row = self._rows
            number = self._flushed + row
            if self.stopped_by is not None:
                self._flushed += 1
                return number
            for column, cell in zip(self._record_columns, cells, strict=True):
                column[row] = cell
            forward = cells[7]
            self._record_columns[7][row] = number - forward if forward >= 0 else 0
            self._append_inputs(number, inputs, input_digests)
            at = self._outputs
            layouts, digests = self._output_layout, self._output_digest
            for layout, digest in outputs:
                layouts[at] = layout
                digests[at * 16 : at * 16 + 16] = digest
                at += 1
            self._outputs = self._output_ends[row] = at
            for digest in generators:
                at = self._generators
                self._generator[at * 16 : at * 16 + 16] = digest
                self._generators = at + 1
            self._generator_ends[row] = self._generators
            self._rows = row + 1
            self._spool.commit(row + 1)
            return number

    def _append_inputs(self, number: int, inputs: Sequence[int], digests: Sequence[tuple[int, bytes]]) -> None:
        row = number - self._flushed
        at = self._inputs
        producer, output, access, layout = self._producer, self._output, self._access, self._input_layout
        for index in range(0, len(inputs), 4):
            origin = inputs[index]
            producer[at] = number - origin if origin >= 0 else 0
            output[at] = inputs[index + 1]
            access[at] = inputs[index + 2]
            layout[at] = inputs[index + 3]
            at += 1
        self._inputs = self._input_ends[row] = at
        at = self._digests
        for position, digest in digests:
            self._position[at] = position
            self._input_digest[at * 16 : at * 16 + 16] = digest
            at += 1
        self._digests = self._digest_ends[row] = at

    def _make_room(self, width: int) -> None:
        self.flush()
        if width > self._spool.child_capacity and self.stopped_by is None:
            try:
                self._open_spool(self._spool.record_capacity, 2 * width)
            except OSError as error:
                self._stop("disk-full", str(error))

    def boundary(self) -> None:
        """A step ended: write a batch if it is worth one."""
        if self._rows >= _ROWS_WORTH_A_BATCH and time.monotonic() - self._last_flush >= 1.0:
            self.flush()

    def flush(self) -> None:
        """Write what the spool holds to the stream, and empty it."""
        with self._lock:
            if self.stopped_by is None:
                try:
                    self._write_names()
                    self._write_records()
                except OSError as error:
                    self._stop("disk-full", str(error))
            self._flushed += self._rows
            self._rows = self._inputs = self._digests = self._outputs = self._generators = 0
            self._last_flush = time.monotonic()
            if self.stopped_by is None:
                self._spool.restart(self._flushed)
                if self._max_bytes is not None and self._bytes_written() > self._max_bytes:
                    self._stop("max-disk", f"the trace of this process reached {self._bytes_written()} bytes")

    def _write_names(self) -> None:
        if not self._names:
            return
        columns = [pa.array(values, field.type) for values, field in zip(zip(*self._names, strict=True), NAMES_SCHEMA, strict=True)]
        self._names_stream.write_batch(pa.record_batch(columns, schema=NAMES_SCHEMA))
        self._names_file.flush()
        self._names.clear()
        self._pending.truncate(0)
        self._pending.seek(0)

    def _write_records(self) -> None:
        if not self._rows:
            return
        spool = self._spool

        def cells(section: Section, count: int) -> bytes:
            return bytes(spool.bytes[section.offset : section.offset + section.column.width * count])

        self._records.write_batch(batch_from_cells(self._rows, spool.layout, cells))
        self._records_file.flush()

    def _bytes_written(self) -> int:
        return self._records_file.tell() + self._names_file.tell()

    def blind_spot(self, identifier: str, what: str, reason: str) -> None:
        """Count something that could not be recorded."""
        with self._lock:
            key = (identifier, what, reason)
            self._blind_spots[key] = self._blind_spots.get(key, 0) + 1
            if self._blind_spots[key] == 1:
                self._write_description(ended=False)

    def describe(self, **facts: Any) -> None:
        """Add facts to `process.json`."""
        self._description.update(facts)
        self._write_description(ended=False)

    def _stop(self, reason: str, detail: str) -> None:
        self.stopped_by = reason
        self._description["stopped_at"] = self._flushed + self._rows
        self._description["stopped_detail"] = detail
        self._write_description(ended=False)

    def _write_description(self, *, ended: bool) -> None:
        spots = [
            {"id": identifier, "what": what, "reason": reason, "count": count}
            for (identifier, what, reason), count in self._blind_spots.items()
        ]
        document = {"format": schema.FORMAT, "pid": os.getpid(), **self._description,
                    "ended": ended, "stopped_by": self.stopped_by, "blind_spots": spots}
        try:
            write_json(self.folder / schema.PROCESS_FILE, document)
        except OSError:
            # A full disk: the reader finds no `ended` and says that the trace is cut.
            self.stopped_by = self.stopped_by or "disk-full"

    def close(self) -> None:
        """Write what is left and end the streams."""
        self.flush()
        for stream in (self._records, self._names_stream, self._records_file, self._names_file, self._pending):
            try:
                stream.close()
            except OSError as error:
                self._stop("disk-full", str(error))
        if self.stopped_by is None:
            (self.folder / schema.SPOOL_FILE).unlink(missing_ok=True)
            (self.folder / schema.PENDING_NAMES_FILE).unlink(missing_ok=True)
        self._write_description(ended=True)
