"""Writes the trace of one process: records and names, streamed, in constant memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from determinism.trace.process_file import ProcessFile
from determinism.trace.process_files import ProcessFiles
from determinism.trace.schema import Meaning, Table
from determinism.trace.waiting_rows import PendingDigest, WaitingRows

_ROWS_WORTH_A_BATCH = 2048
_RECORD_CAPACITIES = (8192, 1024, 128, 16)
_ENTRIES_PER_RECORD = 8


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
        self.num_records = 0
        """How many records were appended, those that came after the writer stopped included."""
        self._lock = threading.RLock()
        # Bound methods take half the time of a `with` statement.
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._process_file = ProcessFile(folder, description)
        self._files = ProcessFiles(folder, max_bytes)
        self._records, self._names = self._files.records, self._files.names
        self._numbers, self._values = self._files.numbers, self._files.values
        self._last_flush = time.monotonic()
        self._store: Any = _store_nothing
        """Stores a record; `Spool.append`, or that of `_waiting`, until writing stops."""
        self._waiting: WaitingRows | None = None
        """Holds records back whose digests are still being made; None as long as no such record came."""
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
        spool = self._files.open_spool(record_capacity, child_capacity)
        if self._waiting is None:
            self._store = spool.append
        else:
            self._waiting = WaitingRows(spool, self._digest_lost)
            self._store = self._waiting.store

    def await_digests(self, **facts: Any) -> None:
        """From now on digests of records may be pending ones.

        Args:
            facts: Added to `process.json`.
        """
        with self._lock:
            spool = self._records.spool
            if self._waiting is None and spool is not None:
                self._waiting = WaitingRows(spool, self._digest_lost)
                if self.stopped_by is None:
                    self._store = self._waiting.store
        self.describe(**facts)

    def settle_digests(self) -> None:
        """Wait for the digests that records wait for."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.settle()

    def _digest_lost(self, reason: str) -> None:
        self.blind_spot("device-digest", "digests of tensors on a device", reason)

    def name(self, table: Table, text: str) -> int:
        """Add a row to a table of names and return its number."""
        with self._lock:
            number = self._names.next_number(table)
            if not self._files.has_room_for_name(text):
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
        input_digests: Sequence[int | bytes | PendingDigest] = (),
        outputs: Sequence[int | bytes | PendingDigest] = (),
        generators: Sequence[bytes] = (),
    ) -> int:
        """Append one record.

        Args:
            cells: One number per column of `schema.RECORD_COLUMNS`; `forward` as the forward record's number or -1.
            inputs: Flat fours: number of the producing record or -1, its output, access, layout.
            input_digests: Flat twos: position of an input and the digest of the bytes it held, which may be pending after
                `await_digests`.
            outputs: Flat twos: layout and digest of each output; see `input_digests`.
            generators: Digests of generator states: of the op's generator before it drew, or of all at the end of a step.

        Returns:
            The number of the record.
        """
        self._acquire()
        try:
            if not self._store(cells, inputs, input_digests, outputs, generators):
                self._make_room(max(len(inputs) // 4, len(input_digests) // 2, len(outputs) // 2, len(generators)))
                self._store(cells, inputs, input_digests, outputs, generators)
            number = self.num_records
            self.num_records = number + 1
            return number
        finally:
            self._release()

    def _make_room(self, width: int) -> None:
        self.flush()
        spool = self._records.spool
        if self.stopped_by is None and spool is not None and width > spool.child_capacity:
            try:
                self._open_spool(spool.record_capacity, 2 * width)
            except OSError as error:
                self._stop("max-disk" if error.errno is None else "disk-full", str(error))

    def number(self, meaning: Meaning, record: int, edge: Sequence[int], value: float, step: int) -> None:
        """Keep a number, so that it can be shown.

        Args:
            meaning: What it is.
            record: The record that it belongs to.
            edge: What the record read: number of the producer and its output; empty if that is not known.
            value: The number.
            step: The step of the record.
        """
        producer, output = edge[:2] if edge else (-1, 0)
        self._acquire()
        try:
            self._numbers.add(meaning, record, producer, output, value, step)
        finally:
            self._release()

    def values(self, record: int, output: int, elements: bytes) -> None:
        """Keep elements of what a record gave.

        Args:
            record: Its number.
            output: Which of its outputs, from 0.
            elements: Those at `sampled_places`, one after the other.
        """
        with self._lock:
            self._values.add(record, output, elements)
            if self._values.is_due:
                self._flush_numbers()

    def boundary(self) -> None:
        """A step ended: write its numbers and values, and a batch if it is worth one."""
        with self._lock:
            self._flush_numbers()
            self._numbers.boundary()
            if self._waiting is not None:
                self._waiting.advance()
        if self._records.num_waiting >= _ROWS_WORTH_A_BATCH and time.monotonic() - self._last_flush >= 1.0:
            self.flush()

    def flush(self) -> None:
        """Write what the spool holds to the stream, and empty it."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.settle()
            if self.stopped_by is None:
                try:
                    self._names.flush(self._has_room_for)
                    if self.stopped_by is None:
                        self._records.flush(self._has_room_for)
                except (OSError, pa.ArrowException) as error:
                    self._stop("disk-full", str(error))
            self._last_flush = time.monotonic()

    def _flush_numbers(self) -> None:
        was_full = self._values.is_full
        for file in (self._numbers, self._values):
            if self.stopped_by is None:
                try:
                    file.flush(self._files.room)
                except OSError as error:
                    self._stop("disk-full", str(error))
        if self._values.is_full and not was_full:
            self.blind_spot("values-cut", "values of later tensors", "the limit of --max-disk was reached")

    def _has_room_for(self, batch: pa.RecordBatch) -> bool:
        """Whether a batch still fits; if not, what it holds stays where it is, and recording stops."""
        if self._files.has_room_for_batch(batch):
            return True
        self._stop_at_limit()
        return False

    def blind_spot(self, identifier: str, what: str, reason: str) -> None:
        """Count something that could not be recorded."""
        with self._lock:
            if self._process_file.count_blind_spot(identifier, what, reason):
                self._write_description(ended=False)

    def describe(self, **facts: Any) -> None:
        """Add facts to `process.json`."""
        with self._lock:
            self._process_file.facts.update(facts)
            self._write_description(ended=False)

    def _stop_at_limit(self) -> None:
        files = self._files
        self._stop("max-disk", f"the trace of this process takes {files.bytes_on_disk} bytes of {files.max_bytes}")

    def _stop(self, reason: str, detail: str) -> None:
        if self.stopped_by is not None:
            return
        self._stop_storing(reason)
        self.describe(stopped_at=self.num_records, stopped_detail=detail)

    def _stop_storing(self, reason: str) -> None:
        if self.stopped_by is None:
            self.stopped_by = reason
        self._store = _store_nothing
        self._records.stop(self.stopped_by)

    def _write_description(self, *, ended: bool) -> None:
        try:
            self._process_file.write(ended=ended, stopped_by=self.stopped_by)
        except OSError:
            # The spool still has room to say so.
            self._stop_storing("disk-full")

    def close(self) -> None:
        """Write what is left and end the streams."""
        self._flush_numbers()
        self.flush()
        for file in self._files.all:
            try:
                file.close()
            except (OSError, pa.ArrowException) as error:
                self._stop("disk-full", str(error))
        if self.stopped_by is None:
            self._files.discard_pending()
        self._write_description(ended=True)


def _store_nothing(*parts: Any) -> bool:
    """Take a record after writing stopped: it counts, and goes nowhere."""
    return True
