"""A memory-mapped buffer of records that are not yet in the stream.

What was stored stays in the file when the process is killed, because the pages belong to the kernel; so a trace is
complete up to the last whole record, however the process ended, without a write per record. The space is reserved
beforehand: writing into a sparse map on a full disk would kill the program with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

from determinism.trace.schema import CHILD_COLUMNS, RECORD_COLUMNS, VERSION, Column

_HEADER = struct.Struct("<8sIIQII")  # magic, version, rows, first record, record capacity, child capacity
_MAGIC = b"detspool"
_ROWS_OFFSET = 12
_FIRST_OFFSET = 16
_STOP_OFFSET = 32
HEADER_BYTES = 64
_STOPS = ("", "disk-full", "max-disk")
"""Why recording stopped. On a full disk this byte is all that can still be said, because it has its place already."""


class Section(NamedTuple):
    """Where one column lies in the spool."""

    group: str
    column: Column
    offset: int
    capacity: int


def sections(record_capacity: int, child_capacity: int) -> list[Section]:
    """Lay out every column for the given numbers of records and of list entries."""
    laid_out: list[Section] = []
    offset = HEADER_BYTES

    def place(group: str, column: Column, capacity: int) -> None:
        nonlocal offset
        laid_out.append(Section(group, column, offset, capacity))
        offset += -(-column.width * capacity // 16) * 16

    for column in RECORD_COLUMNS:
        place("record", column, record_capacity)
    for group, columns in CHILD_COLUMNS.items():
        place("end", Column(group, "i"), record_capacity)
        for column in columns:
            place(group, column, child_capacity)
    return laid_out


def spool_bytes(record_capacity: int, child_capacity: int) -> int:
    """How large a spool is."""
    last = sections(record_capacity, child_capacity)[-1]
    return last.offset + -(-last.column.width * last.capacity // 16) * 16


class Spool:
    """The buffer of one process, with one memory view per column."""

    def __init__(self, path: Path, record_capacity: int, child_capacity: int, first_record: int = 0) -> None:
        """Create the file.

        Args:
            path: Where; a spool that lies there already is replaced.
            record_capacity: Room for so many records.
            child_capacity: Room for so many entries of each list.
            first_record: Number of the next record.

        Raises:
            OSError: The disk has no room for it.
        """
        self.record_capacity = record_capacity
        self.child_capacity = child_capacity
        self.layout = sections(record_capacity, child_capacity)
        size = self.size = spool_bytes(record_capacity, child_capacity)
        # Under another name until it is whole: the pages of a spool that is in use must not lose their file.
        part = path.with_name(f"{path.name}.part")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
            _HEADER.pack_into(self._map, 0, _MAGIC, VERSION, 0, first_record, record_capacity, child_capacity)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self.bytes = memoryview(self._map)
        self.first_record = first_record
        self._rows = self.bytes[_ROWS_OFFSET : _ROWS_OFFSET + 4].cast("I")
        self._first = self.bytes[_FIRST_OFFSET : _FIRST_OFFSET + 8].cast("Q")

    def view(self, section: Section) -> memoryview:
        """The cells of one column; digests as bytes."""
        end = section.offset + section.column.width * section.capacity
        raw = self.bytes[section.offset : end]
        if section.column.code == "digest":
            return raw
        return raw.cast("i") if section.column.code == "i" else raw.cast("b")

    def commit(self, rows: int) -> None:
        """Say that this many records are whole."""
        self._rows[0] = rows

    def stop(self, reason: str) -> None:
        """Say why nothing more will be recorded."""
        self._map[_STOP_OFFSET] = _STOPS.index(reason)

    def restart(self, first_record: int) -> None:
        """Empty the spool; the next record is number `first_record`."""
        self._rows[0] = 0
        self._first[0] = first_record
        self.first_record = first_record


class SpoolContent(NamedTuple):
    """What a spool file holds."""

    rows: int
    first_record: int
    layout: list[Section]
    data: bytes
    stopped_by: str | None
    """`disk-full` or `max-disk`."""


def read_spool(path: Path) -> SpoolContent | None:
    """Read the spool that a process left behind; None if there is none or if it is not whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < HEADER_BYTES:
        return None
    magic, version, rows, first, record_capacity, child_capacity = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != VERSION or rows > record_capacity:
        return None
    layout = sections(record_capacity, child_capacity)
    last = layout[-1]
    if len(data) < last.offset + last.column.width * last.capacity:
        return None
    stop = data[_STOP_OFFSET]
    return SpoolContent(rows, first, layout, data, _STOPS[stop] or None if stop < len(_STOPS) else None)


def read_progress(path: Path) -> tuple[int, int] | None:
    """The number of records so far and the last step, from a spool that is being written; None before it exists."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
            magic, _, rows, first, record_capacity, child_capacity = _HEADER.unpack_from(header)
            if magic != _MAGIC:
                return None
            section = next(s for s in sections(record_capacity, child_capacity) if s.column.name == "step")
            file.seek(section.offset + 4 * max(rows - 1, 0))
            return first + rows, int.from_bytes(file.read(4), "little", signed=True)
    except (OSError, struct.error):
        return None
