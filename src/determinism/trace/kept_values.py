"""Elements of what records gave: digests tell whether two results differ, and how far they are apart needs values.

Of a large tensor a sample is kept, at places that depend on nothing but its size. So two runs keep the same elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from determinism.trace.schema import VALUES_FILE

_ROW = struct.Struct("<qhxxI")
_MOST_WAITING = 1 << 20
_GOLDEN = 0x9E3779B9
"""The golden ratio as a share of 2**32: its multiples are spread evenly, and follow no stride."""
Place = tuple[int, int]
"""Number of a record, and which of its outputs."""


def sampled_places(elements: int, most: int) -> list[int]:
    """Which elements of a tensor are kept, in the order of its indices: one of each of `most` parts of equal size.

    Within each part the place varies, so that no column or channel is met again and again.

    Args:
        elements: How many the tensor has.
        most: How many are kept at most; of a tensor that has no more, all are.
    """
    if elements <= most:
        return list(range(elements))
    ends = [part * elements // most for part in range(most + 1)]
    return [
        start + ((part * _GOLDEN & 0xFFFFFFFF) * (end - start) >> 32)
        for part, (start, end) in enumerate(pairwise(ends))
    ]


class ValuesWriter:
    """Adds rows to a file, which is made with the first of them."""

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
        """Whether so much waits that it is to be written."""
        return self._num_pending >= _MOST_WAITING

    def add(self, record: int, output: int, elements: bytes) -> None:
        """Add the elements of an output."""
        row = _ROW.pack(record, output, len(elements)) + elements
        self._num_pending += len(row)
        self._pending.append(row)

    def flush(self, room: int | None) -> None:
        """Write what was added, up to the first row that there is no room for; after that nothing more is written.

        Args:
            room: How many bytes may be taken; None for any number.

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
            self._file = self._path.open("wb", buffering=0)
        self.bytes_written += self._file.write(b"".join(rows))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class ValuesReader:
    """Reads the rows of one process once, from the first on."""

    def __init__(self, folder: Path) -> None:
        self._rows = _rows(folder / VALUES_FILE)
        self._next = next(self._rows, None)

    def between(self, first: int, end: int) -> dict[Place, bytes]:
        """The kept elements of records from one number to before another, by record and output.

        Args:
            first: Number of the first record; no smaller than `end` of the call before.
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


def _rows(path: Path) -> Iterator[tuple[Place, bytes]]:
    """The rows of a file, up to one that breaks off, since a process may be killed while it writes."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        while len(head := file.read(_ROW.size)) == _ROW.size:
            record, output, length = _ROW.unpack(head)
            elements = file.read(length)
            if record < 0 or output < 0 or len(elements) < length:
                return
            yield (record, output), elements
