"""What the file of a spool looks like, and how it is read after the process that wrote it is gone.

Behind a header lie the rows of the records, with where their list entries end, and then the entries of each list.
A row has all cells of a record side by side, so that one store puts them there. References are the numbers of the
records themselves; they become distances when the rows become a batch.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from determinism.trace.schema import CHILD_COLUMNS, RECORD_COLUMNS, Column

HEADER = struct.Struct("=8sIIQII")  # magic, version, rows, first record, record capacity, child capacity
MAGIC = b"detspool"
SPOOL_VERSION = 2
ROWS_OFFSET = 12
FIRST_OFFSET = 16
STOP_OFFSET = 32
HEADER_BYTES = 64
_MOST_TRIES = 3
STOPS = ("", "disk-full", "max-disk")
"""Why recording stopped. On a full disk this byte is all that can still be said, because it has its place already."""

RECORDS = "records"
_END = "end of "
_CODES = {"i": "i", "b": "b", "digest": "16s"}
_TYPES = {"i": "i4", "b": "i1", "16s": "V16", "q": "i8"}


def _cells(columns: tuple[Column, ...]) -> tuple[tuple[str, str], ...]:
    """Name and `struct` code of each cell of a row."""
    return tuple((c.name, "q" if c.is_reference else _CODES[c.code]) for c in columns)


ROWS = {
    RECORDS: (*_cells(RECORD_COLUMNS), *((_END + group, "i") for group in CHILD_COLUMNS)),
    **{group: _cells(columns) for group, columns in CHILD_COLUMNS.items()},
}
"""The cells of one row: of a record, and of an entry of each list."""


def row_format(group: str) -> str:
    """The `struct` codes of a row, without padding."""
    return "".join(code for _, code in ROWS[group])


def row_bytes(group: str) -> int:
    """How many bytes a row takes."""
    return struct.calcsize(f"={row_format(group)}")


class Section(NamedTuple):
    """Where the rows of a record or of the entries of a list lie."""

    offset: int
    capacity: int


def sections(record_capacity: int, child_capacity: int) -> dict[str, Section]:
    """Lay out the sections for the given numbers of records and of entries in each list."""
    laid_out = {}
    offset = HEADER_BYTES
    for group in ROWS:
        capacity = record_capacity if group == RECORDS else child_capacity
        laid_out[group] = Section(offset, capacity)
        offset += -(-row_bytes(group) * capacity // 16) * 16
    return laid_out


def spool_bytes(record_capacity: int, child_capacity: int) -> int:
    """How large a spool is."""
    group, section = list(sections(record_capacity, child_capacity).items())[-1]
    return section.offset + -(-row_bytes(group) * section.capacity // 16) * 16


class SpoolContent(NamedTuple):
    """What a spool holds."""

    num_records: int
    first_record: int
    sections: dict[str, Section]
    data: Any
    """The whole file, as something with bytes."""
    stopped_by: str | None
    """`disk-full` or `max-disk`."""

    def rows(self, group: str, count: int) -> np.ndarray[Any, Any]:
        """The first rows of a section, with a field per cell.

        Raises:
            ValueError: There is no room for so many.
        """
        section = self.sections[group]
        if not 0 <= count <= section.capacity:
            raise ValueError(f"{count} rows of {group} in room for {section.capacity}")
        row = np.dtype([(name, _TYPES[code]) for name, code in ROWS[group]])
        return np.frombuffer(self.data, row, count, section.offset)

    def ends(self, group: str) -> np.ndarray[Any, Any]:
        """Where the entries of each record end in a list."""
        return self.rows(RECORDS, self.num_records)[_END + group]


def read_spool(path: Path) -> SpoolContent | None:
    """Read the spool that a process left behind; None if there is none or if it is not whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < HEADER_BYTES:
        return None
    magic, version, rows, first, record_capacity, child_capacity = HEADER.unpack_from(data)
    if magic != MAGIC or version != SPOOL_VERSION or rows > record_capacity:
        return None
    if len(data) < spool_bytes(record_capacity, child_capacity):
        return None
    stop = data[STOP_OFFSET]
    stopped_by = STOPS[stop] or None if stop < len(STOPS) else None
    return SpoolContent(rows, first, sections(record_capacity, child_capacity), data, stopped_by)


def steady_bytes(path: Path) -> bytes | None:
    """What a spool that is being written holds at one moment; None if there is none, or if it is emptied again and again."""
    for _ in range(_MOST_TRIES):
        try:
            data = path.read_bytes()
            with path.open("rb") as file:
                now = file.read(HEADER_BYTES)
        except OSError:
            return None
        place = slice(FIRST_OFFSET, FIRST_OFFSET + 8)
        if len(data) >= HEADER_BYTES and data[place] == now[place]:
            # It was not emptied and filled anew meanwhile, so the records that its header counts are whole.
            return data
    return None


def read_progress(path: Path) -> tuple[int, int] | None:
    """The number of records so far and the last step, from a spool that is being written; None before it exists."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
            magic, version, rows, first, record_capacity, child_capacity = HEADER.unpack_from(header)
            if magic != MAGIC or version != SPOOL_VERSION:
                return None
            section = sections(record_capacity, child_capacity)[RECORDS]
            file.seek(section.offset + row_bytes(RECORDS) * max(rows - 1, 0))
            cells = struct.unpack(f"={row_format(RECORDS)}", file.read(row_bytes(RECORDS)))
            return first + rows, cells[[name for name, _ in ROWS[RECORDS]].index("step")]
    except (OSError, struct.error):
        return None
