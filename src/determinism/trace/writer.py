"""Writes the trace of one process: records and names, streamed, in constant memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from determinism.trace import schema
from determinism.trace.batches import RECORD_SCHEMA, WRITE_OPTIONS, batch_from_cells, written_bytes
from determinism.trace.names_writer import NamesWriter
from determinism.trace.process_file import ProcessFile
from determinism.trace.schema import Table
from determinism.trace.spool import Section, Spool, spool_bytes

_ROWS_WORTH_A_BATCH = 2048
_RECORD_CAPACITIES = (8192, 1024, 128, 16)
_ENTRIES_PER_RECORD = 8
_DOCUMENT_BYTES = 16384
"""What the manifest and `process.json` may take."""
_HEADER_BYTES = 4096
_LINE_BYTES = 64


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
        self._lock = threading.RLock()
        self._process_file = ProcessFile(folder, description)
        self._names = NamesWriter(folder)
        self._file = (folder / schema.RECORDS_FILE).open("wb")
        self._stream: Any = pa.ipc.new_stream(self._file, RECORD_SCHEMA, options=WRITE_OPTIONS)
        self._flushed = 0
        self._last_flush = time.monotonic()
        self._spool: Spool | None = None
        self._record_capacity = self._child_capacity = 0
        self._rows = self._inputs = self._digests = self._outputs = self._generators = 0
        self._open_first_spool()
        self._write_description(ended=False)

    def _open_first_spool(self) -> None:
        """Make the largest spool that there is room for."""
        for record_capacity in _RECORD_CAPACITIES:
            try:
                self._open_spool(record_capacity, _ENTRIES_PER_RECORD * record_capacity)
                return
            except OSError as error:
                failure = error
        self._stop("max-disk" if failure.errno is None else "disk-full", str(failure))

    def _open_spool(self, record_capacity: int, child_capacity: int) -> None:
        size = spool_bytes(record_capacity, child_capacity)
        if self._max_bytes is not None and self._bytes_written() + 2 * size > self._max_bytes:
            raise OSError(f"{self._max_bytes} bytes leave no room for {size} bytes of records")
        self._spool = spool = Spool(self.folder / schema.SPOOL_FILE, record_capacity, child_capacity, self._flushed)
        self._record_capacity, self._child_capacity, self._commit = record_capacity, child_capacity, spool.commit
        columns = [spool.view(section) for section in spool.layout]
        records = len(schema.RECORD_COLUMNS)
        self._record_columns = columns[:records]
        self._input_ends, self._producer, self._output, self._access, self._input_layout = columns[
            records : records + 5
        ]
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
            number = self._names.next_number(table)
            if self._max_bytes is not None and self._bytes_on_disk() + len(text) + _LINE_BYTES > self._max_bytes:
                self._stop_at_limit()
            if self.stopped_by is None:
                try:
                    self._names.add(table, number, text)
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
            if self.stopped_by is None and (
                self._rows >= self._record_capacity
                or self._inputs + len(inputs) // 4 > self._child_capacity
                or self._outputs + len(outputs) > self._child_capacity
                or self._digests + len(input_digests) > self._child_capacity
                or self._generators + len(generators) > self._child_capacity
            ):
                self._make_room(max(len(inputs) // 4, len(outputs), len(input_digests), len(generators)))
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
            self._commit(row + 1)
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
        if width > self._child_capacity and self.stopped_by is None:
            try:
                self._open_spool(self._record_capacity, 2 * width)
            except OSError as error:
                self._stop("max-disk" if error.errno is None else "disk-full", str(error))

    def boundary(self) -> None:
        """A step ended: write a batch if it is worth one."""
        if self._rows >= _ROWS_WORTH_A_BATCH and time.monotonic() - self._last_flush >= 1.0:
            self.flush()

    def flush(self) -> None:
        """Write what the spool holds to the stream, and empty it."""
        with self._lock:
            if self.stopped_by is None:
                try:
                    self._names.flush(self._has_room_for)
                    self._write_records()
                except (OSError, pa.ArrowException) as error:
                    self._stop("disk-full", str(error))
            self._flushed += self._rows
            self._rows = self._inputs = self._digests = self._outputs = self._generators = 0
            self._last_flush = time.monotonic()
            if self.stopped_by is None and self._spool is not None:
                self._spool.restart(self._flushed)

    def _write_records(self) -> None:
        spool = self._spool
        if not self._rows or spool is None or self.stopped_by is not None:
            return

        def cells(section: Section, count: int) -> bytes:
            return bytes(spool.bytes[section.offset : section.offset + section.column.width * count])

        batch = batch_from_cells(self._rows, spool.layout, cells)
        if self._has_room_for(batch):
            self._stream.write_batch(batch)
            self._file.flush()

    def _has_room_for(self, batch: pa.RecordBatch) -> bool:
        """Whether a batch still fits; if not, what it holds stays where it is, and recording stops."""
        if self._max_bytes is None:
            return True
        room = self._max_bytes - self._bytes_on_disk()
        if batch.nbytes + _HEADER_BYTES > room and written_bytes(batch) > room:
            self._stop_at_limit()
            return False
        return True

    def _bytes_written(self) -> int:
        return self._file.tell() + self._names.bytes_written + _DOCUMENT_BYTES

    def _bytes_on_disk(self) -> int:
        return self._bytes_written() + (self._spool.size if self._spool is not None else 0)

    def blind_spot(self, identifier: str, what: str, reason: str) -> None:
        """Count something that could not be recorded."""
        with self._lock:
            if self._process_file.count_blind_spot(identifier, what, reason):
                self._write_description(ended=False)

    def describe(self, **facts: Any) -> None:
        """Add facts to `process.json`."""
        self._process_file.facts.update(facts)
        self._write_description(ended=False)

    def _stop_at_limit(self) -> None:
        self._stop("max-disk", f"the trace of this process takes {self._bytes_on_disk()} bytes of {self._max_bytes}")

    def _stop(self, reason: str, detail: str) -> None:
        if self.stopped_by is not None:
            return
        self.stopped_by = reason
        if self._spool is not None:
            self._spool.stop(reason)
        self.describe(stopped_at=self._flushed + self._rows, stopped_detail=detail)

    def _write_description(self, *, ended: bool) -> None:
        try:
            self._process_file.write(ended=ended, stopped_by=self.stopped_by)
        except OSError:
            # The spool still has room to say so.
            if self.stopped_by is None:
                self.stopped_by = "disk-full"
            if self._spool is not None:
                self._spool.stop(self.stopped_by)

    def close(self) -> None:
        """Write what is left and end the streams."""
        self.flush()
        for file in (self._stream, self._names, self._file):
            try:
                file.close()
            except (OSError, pa.ArrowException) as error:
                self._stop("disk-full", str(error))
        if self.stopped_by is None:
            (self.folder / schema.SPOOL_FILE).unlink(missing_ok=True)
            self._names.discard_pending()
        self._write_description(ended=True)
