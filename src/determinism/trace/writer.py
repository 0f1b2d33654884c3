"""Writes the trace of one process: records and names, streamed, in constant memory."""

from __future__ import annotations

import json
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from determinism.op_semantics import OpSemantics, text_of
from determinism.trace.chunks import (
    NAMES_SCHEMA,
    RECORD_SCHEMA,
    WRITE_OPTIONS,
    batch_from_names,
    readable_parts,
    written_bytes,
)
from determinism.trace.files import NO_MORE_FILES, private, run_of, write_json
from determinism.trace.kept_values import NumbersWriter, ValuesWriter
from determinism.trace.ledger import ROW_BYTES
from determinism.trace.schema import (
    EARLIER_RECORDS,
    FIRST_METADATA,
    FORMAT,
    INTERRUPT,
    LEDGER_FILE,
    NAMES_FILE,
    PENDING_NAMES_FILE,
    PROCESS_FILE,
    PROCESS_METADATA,
    RECORDS_FILE,
    RUN_METADATA,
    SPOOL_FILE,
    Meaning,
    Table,
)
from determinism.trace.spool import Delivery, PendingDigest, Spool, WaitingRows, batch_from_spool, spool_bytes


def _of_run(columns: pa.Schema, process: Path, **more: str) -> pa.Schema:
    """Add the names of the run and the process to the columns of a file in the folder of a process."""
    run = run_of(process.parents[1])
    named = {} if run is None else {RUN_METADATA: run, PROCESS_METADATA: process.name}
    return columns.with_metadata({**columns.metadata, **named, **more}) if named or more else columns


# Writes the tables of names of one process.


class NamesWriter:
    """A stream of names, and a file with those that are not in the stream yet."""

    def __init__(self, folder: Path) -> None:
        """Create both files.

        Raises:
            OSError: They cannot be created.
        """
        self._rows: list[tuple[int, int, str]] = []
        self._counts = [0] * len(Table)
        self._file = open(folder / NAMES_FILE, "wb", opener=private)  # noqa: SIM115 (it stays open)
        self._pending_path = folder / PENDING_NAMES_FILE
        self._pending = open(self._pending_path, "wb", buffering=0, opener=private)  # noqa: SIM115 (it stays open)
        self._pending_bytes = 0
        self._stream: Any = pa.ipc.new_stream(self._file, _of_run(NAMES_SCHEMA, folder), options=WRITE_OPTIONS)

    @property
    def bytes_written(self) -> int:
        """Combined size of both files."""
        return self._file.tell() + self._pending_bytes

    def next_number(self, table: Table) -> int:
        """The number of the next row of a table."""
        number = self._counts[table]
        self._counts[table] = number + 1
        return number

    def add(self, table: Table, number: int, text: str) -> None:
        """Add a row; it is in the pending file when this returns.

        Raises:
            OSError: It could not be written.
        """
        if not text.isascii():
            # A file name may contain bytes that are not valid UTF-8, which Arrow refuses.
            text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        row = (int(table), number, text)
        self._rows.append(row)
        line = json.dumps(row).encode() + b"\n"
        written = self._pending.write(line)
        self._pending_bytes += written
        if written < len(line):
            raise OSError(f"{written} of {len(line)} bytes were written")

    def flush(self, has_room_for: Callable[[pa.RecordBatch], bool]) -> None:
        """Move the rows to the stream, if there is room.

        Raises:
            OSError: They could not be written; they are still in the pending file.
        """
        if not self._rows:
            return
        batch = batch_from_names(self._rows)
        if not has_room_for(batch):
            return
        for part in readable_parts(batch):
            self._stream.write_batch(part)
        self._file.flush()
        self._rows.clear()
        self._pending.truncate(0)
        self._pending.seek(0)
        self._pending_bytes = 0

    def close(self) -> None:
        """Close the stream and the pending file.

        Raises:
            OSError: The end of the stream could not be written.
        """
        try:
            self._stream.close()
        finally:
            self._pending.close()
            self._file.close()

    def discard_pending(self) -> None:
        """Remove the pending file: the stream has all rows."""
        self._pending_path.unlink(missing_ok=True)


# What a process says about itself: `process.json`.


class ProcessFile:
    """The description of a process while it is being recorded; rewritten whenever it changes."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self._path = folder / PROCESS_FILE
        self.facts = facts
        self._blind_spots: dict[tuple[str, str, str], int] = {}

    def count_blind_spot(self, identifier: str, what: str, reason: str) -> bool:
        """Count something that was not recorded; return whether it is the first of its kind."""
        key = (identifier, what, reason)
        self._blind_spots[key] = self._blind_spots.get(key, 0) + 1
        return self._blind_spots[key] == 1

    def write(self, *, ended: bool, stopped_by: str | None) -> None:
        """Replace the file.

        Raises:
            OSError: It cannot be written; its previous content is unharmed.
        """
        spots = [
            {"id": identifier, "what": what, "reason": reason, "count": count}
            for (identifier, what, reason), count in self._blind_spots.items()
        ]
        state = {"ended": ended, "stopped_by": stopped_by, "blind_spots": spots}
        write_json(self._path, {"format": FORMAT, "pid": os.getpid(), **self.facts, **state})


# Writes the records of one process.


class RecordsWriter:
    """A stream of records, and a spool with those that are not in the stream yet.

    If the oldest records may be removed, the stream is split into several files.
    """

    def __init__(self, folder: Path) -> None:
        """Create the file of the stream.

        Raises:
            OSError: It cannot be created.
        """
        self._folder = folder
        self._spool_path = folder / SPOOL_FILE
        self._earlier: deque[tuple[Path, int]] = deque()
        """Files with earlier records, and their sizes."""
        self._first = 0
        """Number of the first record in the stream."""
        self._file, self._stream = self._open(folder / RECORDS_FILE, 0)
        self.spool: Spool | None = None
        """None until the first one is opened."""

    def _open(self, path: Path, first: int) -> tuple[Any, Any]:
        file = open(path, "wb", opener=private)  # noqa: SIM115 (it stays open)
        more = {FIRST_METADATA: str(first)} if first else {}
        return file, pa.ipc.new_stream(file, _of_run(RECORD_SCHEMA, self._folder, **more), options=WRITE_OPTIONS)

    @property
    def bytes_written(self) -> int:
        """Size of the stream."""
        return int(self._file.tell()) + sum(size for _, size in self._earlier)

    def begin_file(self) -> None:
        """Continue the stream in a new file, so that the previous one can be removed.

        Raises:
            OSError: The file cannot be created.
        """
        if self.spool is None or self.spool.first_record == self._first:
            return
        earlier = self._folder / EARLIER_RECORDS.replace("*", f"{self._first:012}")
        previous, current = self._folder / RECORDS_FILE, self._folder / f"{RECORDS_FILE}.part"
        first = self.spool.first_record
        file, stream = self._open(current, first)
        try:
            self._stream.close()
        except (OSError, pa.ArrowException):
            file.close()
            current.unlink()
            raise
        self._earlier.append((earlier, int(self._file.tell())))
        self._file.close()
        self._file, self._stream, self._first = file, stream, first
        # If the process is killed in between, there is no current file; all records are in the earlier ones and the spool.
        previous.rename(earlier)
        current.rename(previous)

    def remove_oldest(self) -> bool:
        """Remove the oldest file; return whether there was one.

        Raises:
            OSError: It cannot be removed.
        """
        if not self._earlier:
            return False
        self._earlier.popleft()[0].unlink()
        return True

    @property
    def file_bytes(self) -> int:
        """Size of the current file."""
        return int(self._file.tell())

    @property
    def spool_bytes(self) -> int:
        """Size of the spool."""
        return 0 if self.spool is None else self.spool.size

    @property
    def num_waiting(self) -> int:
        """Number of records in the spool."""
        return 0 if self.spool is None else self.spool.num_records

    def open_spool(self, record_capacity: int, child_capacity: int, room: int | None) -> Spool:
        """Replace the current spool with an empty one.

        Args:
            record_capacity: How many records it has room for.
            child_capacity: How many entries of each list it has room for.
            room: How many bytes the spool and a batch of the same size may take together.

        Raises:
            OSError: The disk has no room for it; or, without an `errno`, it would exceed the limit.
        """
        size = spool_bytes(record_capacity, child_capacity)
        if room is not None and 2 * size > room:
            raise OSError(f"{size} bytes of records do not fit into the {room} bytes that are left")
        first = 0 if self.spool is None else self.spool.first_record
        self.spool = Spool(self._spool_path, record_capacity, child_capacity, first)
        return self.spool

    def flush(self, has_room_for: Callable[[pa.RecordBatch], bool]) -> None:
        """Move the records to the stream, if there is room.

        Raises:
            OSError: They could not be written; they are still in the spool.
        """
        if not self.num_waiting or self.spool is None:
            return
        batch = batch_from_spool(self.spool.content())
        if not has_room_for(batch):
            return
        for part in readable_parts(batch):
            self._stream.write_batch(part)
        self._file.flush()
        self.spool.restart()

    def stop(self, reason: str) -> None:
        """Note in the spool why nothing more will be recorded."""
        if self.spool is not None:
            self.spool.stop(reason)

    def close(self) -> None:
        """Close the stream.

        Raises:
            OSError: Its end could not be written.
        """
        try:
            self._stream.close()
        finally:
            self._file.close()

    def discard_spool(self) -> None:
        """Remove the spool: the stream has all records."""
        self._spool_path.unlink(missing_ok=True)


# The files of the trace of one process, and how much they may still grow.

_DOCUMENT_BYTES = 16384
"""Allowance for the manifest and `process.json`."""
_HEADER_BYTES = 4096
_LINE_BYTES = 64
_NEWEST_FILES = 8
"""About how many files the records are split into, if the oldest one is removed at the limit."""


class ProcessFiles:
    """Records, names, numbers and kept values, each in a file; together they stay within a limit."""

    def __init__(self, folder: Path, max_bytes: int | None, *, keeps_newest: bool = False) -> None:
        """Create them.

        Args:
            folder: An existing folder that belongs to this process alone.
            max_bytes: Limit on all of them together, including the description of the process; None for no limit.
            keeps_newest: Whether the oldest records are removed when the limit is reached.

        Raises:
            OSError: They cannot be created.
        """
        self.max_bytes = max_bytes
        self._keeps_newest = keeps_newest and max_bytes is not None
        self._ledger = folder / LEDGER_FILE
        self.names = NamesWriter(folder)
        self.records = RecordsWriter(folder)
        self.numbers = NumbersWriter(folder)
        self.values = ValuesWriter(folder)
        self.all = (self.records, self.names, self.numbers, self.values)

    @property
    def bytes_on_disk(self) -> int:
        """Size of all files, including the spool."""
        return self._bytes_written + self.records.spool_bytes

    @property
    def room(self) -> int | None:
        """How many more bytes may be written; None for no limit."""
        return None if self.max_bytes is None else self.max_bytes - self.bytes_on_disk

    @property
    def _bytes_written(self) -> int:
        # The ledger is written by another writer.
        ledger = self._ledger.stat().st_size if self._keeps_newest and self._ledger.exists() else 0
        return sum(file.bytes_written for file in self.all) + ledger + _DOCUMENT_BYTES

    def has_room_for(self, size: int) -> bool:
        """Whether this many bytes still fit; if the newest records are kept, the oldest are removed to make room.

        Raises:
            OSError: The oldest records cannot be removed.
        """
        while (room := self.room) is not None and size > room:
            if not self.records.remove_oldest():
                return False
        return True

    def make_room_for_step(self) -> None:
        """Make room for the numbers of the step that is ending, and for the next row of the ledger.

        Raises:
            OSError: The oldest records cannot be removed.
        """
        if self._keeps_newest:
            self.has_room_for(self.numbers.bytes_pending + 2 * ROW_BYTES)

    def has_room_for_name(self, text: str) -> bool:
        """Whether a name still fits; see `has_room_for`."""
        return self.has_room_for(len(text) + _LINE_BYTES)

    def has_room_for_batch(self, batch: pa.RecordBatch) -> bool:
        """Whether a batch still fits; see `has_room_for`."""
        if self._keeps_newest and self.records.file_bytes * _NEWEST_FILES >= (self.max_bytes or 0) - self._fixed_bytes:
            self.records.begin_file()
        room = self.room
        return room is None or batch.nbytes + _HEADER_BYTES <= room or self.has_room_for(written_bytes(batch))

    @property
    def _fixed_bytes(self) -> int:
        """Size of everything except the records."""
        return self.bytes_on_disk - self.records.bytes_written

    def open_spool(self, record_capacity: int, child_capacity: int) -> Spool:
        """Replace the current spool with an empty one; see `RecordsWriter.open_spool`."""
        room = None if self.max_bytes is None else self.max_bytes - self._bytes_written
        return self.records.open_spool(record_capacity, child_capacity, room)

    def close(self) -> None:
        """Close the files, even if the disk is full and their ends cannot be written."""
        for file in (self.records, self.names, self.numbers, self.values):
            with suppress(OSError):
                file.close()

    def discard_pending(self) -> None:
        """Remove the buffers whose rows are in the files by now."""
        self.records.discard_spool()
        self.names.discard_pending()


_ROWS_WORTH_A_BATCH = 2048
_RECORD_CAPACITIES = (8192, 1024, 128, 16)
_ENTRIES_PER_RECORD = 8


class VisibleLock:
    """A reentrant lock that shows any thread with the GIL whether it is held.

    A thread that sees that it is free, and keeps the GIL, need not take it: nobody else can in the meantime.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.num_held = array("q", [0])
        """One number: how many times it is held."""

    def acquire(self) -> None:
        """Wait until no other thread holds it."""
        self._lock.acquire()
        self.num_held[0] += 1

    def release(self) -> None:
        """Release it once."""
        self.num_held[0] -= 1
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()


class DirectRows(Protocol):
    """Puts rows into a spool as `Spool.append` does, without going through the writer for each."""

    def attach(self, spool: Spool) -> None:
        """Put rows into this spool from now on."""

    def detach(self) -> None:
        """Pass rows to `ProcessWriter.append` from now on."""


class ProcessWriter:
    """Appends records of one process to its folder.

    A record is in the file when `append` returns, even if the process is killed the next moment (see `spool`).
    When the disk is full or the limit is reached, writing stops for good and `stopped_by` says why; unless the oldest records are
    removed at the limit.
    """

    def __init__(
        self, folder: Path, *, description: dict[str, Any], max_bytes: int | None = None, keeps_newest: bool = False
    ) -> None:
        """Create the folder's files.

        Args:
            folder: An existing folder that belongs to this process alone.
            description: What `process.json` says about the process.
            max_bytes: The trace of this process never grows past this many bytes.
            keeps_newest: Whether the oldest records are removed at this limit.

        Raises:
            OSError: The files cannot be created.
        """
        self.folder = folder
        self.stopped_by: str | None = None
        self._num_unstored = 0
        """Number of records that came after the writer stopped."""
        self.lock = VisibleLock()
        """Keeps all other threads from appending."""
        # Bound methods take half the time of a `with` statement.
        self._acquire, self._release = self.lock.acquire, self.lock.release
        self._process_file = ProcessFile(
            folder,
            {
                "run": run_of(folder.parents[1]),
                "process": folder.name,
                **description,
                **({"keeps_newest": True} if keeps_newest else {}),
            },
        )
        self._files = ProcessFiles(folder, max_bytes, keeps_newest=keeps_newest)
        self._records, self._names = self._files.records, self._files.names
        self._numbers, self._values = self._files.numbers, self._files.values
        self._last_flush = time.monotonic()
        self._store: Any = self._store_nothing
        """Stores a record; `Spool.append`, or that of `_waiting`, until writing stops."""
        self._direct: DirectRows | None = None
        """Puts rows into the spool too, see `share`."""
        self._waiting: WaitingRows | None = None
        """Holds back records whose digests are still being computed; None until `await_digests` is called."""
        try:
            self._open_first_spool()
            self._write_description(ended=False)
        except OSError:
            # `_store` refers to this writer, so the files would stay open until garbage collection.
            self._files.close()
            raise

    def _open_first_spool(self) -> None:
        """Open the largest spool that there is room for."""
        for record_capacity in _RECORD_CAPACITIES:
            try:
                self._open_spool(record_capacity, _ENTRIES_PER_RECORD * record_capacity)
                return
            except OSError as error:
                if error.errno in NO_MORE_FILES:
                    raise
                failure = error
        self._stop("max-disk" if failure.errno is None else "disk-full", str(failure))

    def _open_spool(self, record_capacity: int, child_capacity: int) -> None:
        spool = self._files.open_spool(record_capacity, child_capacity)
        if self._waiting is None:
            self._store = spool.append
        else:
            self._waiting = WaitingRows(spool, self._digest_lost)
            self._store = self._waiting.store
        if self._direct is not None:
            self._direct.attach(spool)

    @property
    def num_records(self) -> int:
        """Number of records that were appended, including those that came after the writer stopped."""
        spool = self._records.spool
        return self._num_unstored + (0 if spool is None else spool.first_record + spool.num_records)

    def share(self, direct: DirectRows) -> None:
        """Let other code put rows into the spool, in addition to `append`.

        Args:
            direct: Must hold this writer's `lock` while it does, or see that nobody holds it and keep the GIL.
        """
        with self.lock:
            self._direct = direct
            spool = self._records.spool
            if spool is not None and self.stopped_by is None:
                direct.attach(spool)

    def unshare(self) -> None:
        """Make every record go through `append` from now on: something waits for one of them."""
        with self.lock:
            if self._direct is not None:
                self._direct.detach()
                self._direct = None

    def await_digests(self, **facts: Any) -> None:
        """Allow pending digests in records from now on.

        Args:
            facts: Added to `process.json`.
        """
        with self.lock:
            spool = self._records.spool
            if self._waiting is None and spool is not None:
                self._waiting = WaitingRows(spool, self._digest_lost)
                if self.stopped_by is None:
                    self._store = self._waiting.store
        self.describe(**facts)

    def digest_places(self, delivery: Delivery) -> array[int] | None:
        """Where in the spool the digests of a delivery go, for other code that puts rows there: see `WaitingRows.places`.

        Returns:
            None if digests cannot be pending.
        """
        with self.lock:
            return None if self._waiting is None else self._waiting.places(delivery)

    def settle_digests(self) -> None:
        """Wait for all pending digests."""
        with self.lock:
            if self._waiting is not None:
                self._waiting.settle()

    def _digest_lost(self, reason: str) -> None:
        self.blind_spot("device-digest", "digests of tensors on a device", reason)

    def name(self, table: Table, text: str) -> int:
        """Add a row to a table of names and return its number."""
        with self.lock:
            number = self._names.next_number(table)
            if not self._files.has_room_for_name(text):
                self._stop_at_limit()
            if self.stopped_by is None:
                try:
                    self._names.add(table, number, text)
                except OSError as error:
                    self._stop("disk-full", str(error))
            return number

    def op(self, name: str, semantics: OpSemantics) -> int:
        """Add an op and its semantics, and return its number."""
        with self.lock:
            # The semantics come first, so that no op is without them.
            self.name(Table.SEMANTICS, text_of(semantics))
            return self.name(Table.OP, name)

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
            inputs: Flat groups of four: number of the producing record or -1, its output, access, layout.
            input_digests: Flat pairs: position of an input and the digest of the bytes it held, which may be pending after
                `await_digests`.
            outputs: Flat pairs: layout and digest of each output; see `input_digests`.
            generators: Digests of generator states: of the op's generator before it drew, or of all at the end of a step.

        Returns:
            The number of the record.
        """
        self._acquire()
        try:
            if not self._store(cells, inputs, input_digests, outputs, generators):
                self._make_room(max(len(inputs) // 4, len(input_digests) // 2, len(outputs) // 2, len(generators)))
                self._store(cells, inputs, input_digests, outputs, generators)
            return self.num_records - 1
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
            edge: What the record read: number of the producer and its output; empty if unknown.
            value: The number.
            step: The step of the record.
        """
        producer, output = edge[:2] if edge else (-1, 0)
        self._numbers.add(meaning, record, producer, output, value, step)

    @property
    def pending_numbers(self) -> list[tuple[int, int, float, int, int, int]]:
        """See `NumbersWriter.pending`."""
        return self._numbers.pending

    def values(self, record: int, output: int, elements: bytes) -> None:
        """Keep elements of an output of a record.

        Args:
            record: Number of the record.
            output: Which of its outputs, from 0.
            elements: Those at `sampled_places`, one after the other.
        """
        with self.lock:
            self._values.add(record, output, elements)
            if self._values.is_due:
                self._flush_numbers()

    def boundary(self) -> None:
        """Write the numbers and values of the step that ended, and the records if they are worth a batch."""
        with self.lock:
            self._flush_numbers()
            self._numbers.boundary()
            if self._waiting is not None:
                self._waiting.advance()
        if self._records.num_waiting >= _ROWS_WORTH_A_BATCH and time.monotonic() - self._last_flush >= 1.0:
            self.flush()

    def flush(self) -> None:
        """Write the content of the spool to the stream, and empty it."""
        with self.lock:
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
        try:
            self._files.make_room_for_step()
        except OSError as error:
            self._stop("disk-full", str(error))
        for file in (self._numbers, self._values):
            if self.stopped_by is None:
                try:
                    file.flush(self._files.room)
                except OSError as error:
                    self._stop("disk-full", str(error))
        if self._values.is_full and not was_full:
            self.blind_spot("values-cut", "values of later tensors", "the limit of --max-disk was reached")

    def _has_room_for(self, batch: pa.RecordBatch) -> bool:
        """Whether a batch still fits; if not, its rows stay where they are, and recording stops."""
        if self._files.has_room_for_batch(batch):
            return True
        self._stop_at_limit()
        return False

    def blind_spot(self, identifier: str, what: str, reason: str) -> None:
        """Count something that could not be recorded."""
        with self.lock:
            if self._process_file.count_blind_spot(identifier, what, reason):
                self._write_description(ended=False)

    def describe(self, **facts: Any) -> None:
        """Add facts to `process.json`."""
        with self.lock:
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

    def interrupted(self) -> None:
        """Write what is left, and note that the process was interrupted: where its records end is up to chance."""
        self._flush_numbers()
        self.flush()
        self._stop(INTERRUPT, "it ended with KeyboardInterrupt")

    def _stop_storing(self, reason: str) -> None:
        if self.stopped_by is None:
            self.stopped_by = reason
        self._store = self._store_nothing
        if self._direct is not None:
            self._direct.detach()
        self._records.stop(self.stopped_by)

    def _write_description(self, *, ended: bool) -> None:
        try:
            self._process_file.write(ended=ended, stopped_by=self.stopped_by)
        except OSError:
            # The spool still has room to note it.
            self._stop_storing("disk-full")

    def close(self) -> None:
        """Write what is left and close the files."""
        self._flush_numbers()
        self.flush()
        for file in self._files.all:
            try:
                file.close()
            except (OSError, pa.ArrowException) as error:
                self._stop("disk-full", str(error))
        if self.stopped_by in (None, INTERRUPT):
            self._files.discard_pending()
        self._write_description(ended=True)

    def _store_nothing(self, *parts: Any) -> bool:
        """Count a record that came after writing stopped, and drop it."""
        self._num_unstored += 1
        return True
