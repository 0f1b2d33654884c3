"""Elements of results and losses, kept in addition to digests: values are needed to measure how far two results differ.

Only a sample of a large tensor is kept, at places that depend only on its size, so that two runs keep the same elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from determinism.trace.files import open_stream, private, read_plain
from determinism.trace.schema import NUMBERS_FILE, VALUES_FILE, Meaning

_SAMPLE_ROW = struct.Struct("<qhxxI")
_MOST_WAITING = 1 << 20
_GOLDEN = 0x9E3779B9
"""The golden ratio as a fraction of 2**32: its multiples are spread evenly, without a stride."""
_MOST_ELEMENTS = 1 << 24
_LARGEST_ELEMENT = 16
"""Bytes of one element: a complex number of two doubles."""
Place = tuple[int, int]
"""Number of a record, and which of its outputs."""


def sampled_places(elements: int, most: int) -> list[int]:
    """Flat indices of the elements of a tensor that are kept, ascending: one from each of `most` parts of equal size.

    The place within the part varies, so that the sample does not favour a column or channel.

    Args:
        elements: Number of elements of the tensor.
        most: Maximum number to keep; a tensor with no more is kept as a whole.
    """
    if elements <= most:
        return list(range(elements))
    ends = [part * elements // most for part in range(most + 1)]
    return [
        start + ((part * _GOLDEN & 0xFFFFFFFF) * (end - start) >> 32)
        for part, (start, end) in enumerate(pairwise(ends))
    ]


class ValuesWriter:
    """Adds rows to a file, which is created with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / VALUES_FILE
        self._file: Any = None
        self._pending: list[bytes] = []
        self._num_pending = 0
        self.bytes_written = 0
        self.is_full = False
        """Whether rows were left out."""

    @property
    def is_due(self) -> bool:
        """Whether enough rows wait to be written."""
        return self._num_pending >= _MOST_WAITING

    def add(self, record: int, output: int, elements: bytes) -> None:
        """Add the elements of an output."""
        row = _SAMPLE_ROW.pack(record, output, len(elements)) + elements
        self._num_pending += len(row)
        self._pending.append(row)

    def flush(self, room: int | None) -> None:
        """Write the added rows, up to the first that there is no room for; after that nothing more is written.

        Args:
            room: How many bytes may be written; None for no limit.

        Raises:
            OSError: It could not be written.
        """
        rows, self._pending, self._num_pending = self._pending, [], 0
        if self.is_full:
            return
        if room is not None:
            fitting = list(_fitting(rows, room))
            self.is_full = len(fitting) < len(rows)
            rows = fitting
        if not rows:
            return
        if self._file is None:
            self._file = open(self._path, "wb", buffering=0, opener=private)  # noqa: SIM115 (it stays open)
        self.bytes_written += self._file.write(b"".join(rows))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class ValuesReader:
    """Reads the rows of one process once, from the first on."""

    def __init__(self, folder: Path, most: int = _MOST_ELEMENTS) -> None:
        """Open the file.

        Args:
            folder: Folder of the process.
            most: Maximum number of elements that were kept of an output.

        Raises:
            TraceError: It is not a regular file.
        """
        self._rows = _rows(folder / VALUES_FILE, most * _LARGEST_ELEMENT)
        self._next = next(self._rows, None)

    def between(self, first: int, end: int) -> dict[Place, bytes]:
        """The kept elements of a range of records, by record and output.

        Args:
            first: Number of the first record; not smaller than `end` of the previous call.
            end: Number of the record after the last one.
        """
        found: dict[Place, bytes] = {}
        while self._next is not None and self._next[0][0] < end:
            place, elements = self._next
            if place[0] >= first:
                found[place] = elements
            self._next = next(self._rows, None)
        return found


def _fitting(rows: list[bytes], room: int) -> Iterator[bytes]:
    for row in rows:
        room -= len(row)
        if room < 0:
            return
        yield row


def _rows(path: Path, most: int) -> Iterator[tuple[Place, bytes]]:
    """The rows of a file, up to one that breaks off, since a process may be killed while it writes.

    Raises:
        TraceError: It is not a regular file.
    """
    try:
        file = open_stream(path)
    except OSError:
        return
    with file:
        while len(head := file.read(_SAMPLE_ROW.size)) == _SAMPLE_ROW.size:
            record, output, length = _SAMPLE_ROW.unpack(head)
            if record < 0 or output < 0 or length > most:
                return
            elements = file.read(length)
            if len(elements) < length:
                return
            yield (record, output), elements


# Losses as numbers: digests show whether two are equal, but a chart needs their difference.

_NUMBER_ROW = struct.Struct("<qqdihh")
NUMBERS_DTYPE = np.dtype(
    [
        ("record", "<i8"), ("producer", "<i8"), ("value", "<f8"), ("step", "<i4"), ("output", "<i2"), ("meaning", "<i2"),
    ]
)  # fmt: skip
MOST_NUMBERS = 64
"""Limit per step: numbers that a program reads by the thousand are not losses."""
_MOST_OUTPUTS = 1 << 15
_MOST_BYTES = 256 << 20
"""How much of a file is read: a chart needs no more."""


class NumbersWriter:
    """Adds rows to a file, which is created with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NUMBERS_FILE
        self._file: Any = None
        self.pending: list[tuple[int, int, float, int, int, int]] = []
        """Rows to be written; not kept in a file's buffer, which a forked child would write a second time.

        Native code appends to it, too, which needs no lock but the GIL. `MOST_NUMBERS` are enough.
        """
        self._room_in_step = MOST_NUMBERS
        self.bytes_written = 0

    def add(self, meaning: Meaning, record: int, producer: int, output: int, value: float, step: int) -> None:
        """Add a row, unless the step has many already."""
        if len(self.pending) < self._room_in_step:
            self.pending.append((record, producer, value, step, output, meaning))

    @property
    def bytes_pending(self) -> int:
        """Number of bytes that wait to be written."""
        return len(self.pending) * _NUMBER_ROW.size

    def boundary(self) -> None:
        """Note that a step ended, whose rows were flushed."""
        self._room_in_step = MOST_NUMBERS

    def flush(self, room: int | None) -> None:
        """Write the added rows, as far as there is room.

        Args:
            room: How many bytes may be written; None for no limit.

        Raises:
            OSError: It could not be written.
        """
        added = self.pending[:]
        # Another thread may append meanwhile.
        del self.pending[: len(added)]
        fits = [row for row in added[: self._room_in_step] if row[4] < _MOST_OUTPUTS]
        if room is not None:
            fits = fits[: max(0, room) // _NUMBER_ROW.size]
        self._room_in_step -= min(self._room_in_step, len(added))
        if not fits:
            return
        if self._file is None:
            self._file = open(self._path, "wb", buffering=0, opener=private)  # noqa: SIM115 (it stays open)
        self.bytes_written += self._file.write(b"".join(_NUMBER_ROW.pack(*row) for row in fits))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_numbers(folder: Path, limit: int | None = None) -> np.ndarray[Any, Any]:
    """The rows of a process: `record`, `producer` (-1 for none), `value`, `step`, `output` and `meaning`.

    Args:
        folder: Folder of the process.
        limit: Leave out rows of records from this number on.

    Raises:
        TraceError: The file is not a regular one.
    """
    try:
        content = read_plain(folder / NUMBERS_FILE, most=_MOST_BYTES)
    except OSError:
        content = b""
    # An incomplete row was being written when the process was killed.
    rows = np.frombuffer(content[: len(content) // _NUMBER_ROW.size * _NUMBER_ROW.size], dtype=NUMBERS_DTYPE)
    rows = rows[(rows["step"] >= 0) & (rows["record"] >= 0)]
    return rows if limit is None else rows[rows["record"] < limit]
