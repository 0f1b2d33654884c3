"""Losses as numbers: digests tell whether two are equal, and a chart needs how far they are apart."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from determinism.trace.schema import NUMBERS_FILE, Meaning

_ROW = struct.Struct("<qqdihh")
_DTYPE = np.dtype(
    [
        ("record", "<i8"), ("producer", "<i8"), ("value", "<f8"), ("step", "<i4"), ("output", "<i2"), ("meaning", "<i2"),
    ]
)  # fmt: skip
_MOST_IN_A_STEP = 64
"""A program that reads numbers by the thousand in a step reads no losses."""
_MOST_OUTPUTS = 1 << 15


class NumbersWriter:
    """Adds rows to a file, which is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NUMBERS_FILE
        self._file: Any = None
        self._pending = bytearray()
        """Kept here and not in the buffer of a file, which a forked child would write a second time."""
        self._num_in_step = 0
        self.bytes_written = 0

    def add(self, meaning: Meaning, record: int, producer: int, output: int, value: float, step: int) -> None:
        """Add a row, unless the step has many already."""
        if self._num_in_step < _MOST_IN_A_STEP and output < _MOST_OUTPUTS:
            self._num_in_step += 1
            self._pending += _ROW.pack(record, producer, value, step, output, meaning)

    def boundary(self) -> None:
        """A step ended."""
        self._num_in_step = 0

    def flush(self, room: int | None) -> None:
        """Write what was added, as far as there is room.

        Args:
            room: How many bytes may be taken; None for any number.

        Raises:
            OSError: It could not be written.
        """
        fits = len(self._pending) if room is None else min(len(self._pending), max(0, room) // _ROW.size * _ROW.size)
        rows = bytes(self._pending[:fits])
        self._pending.clear()
        if not rows:
            return
        if self._file is None:
            self._file = self._path.open("wb", buffering=0)
        self.bytes_written += self._file.write(rows)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read_numbers(folder: Path, limit: int | None = None) -> np.ndarray[Any, Any]:
    """The rows of a process: `record`, `producer` (-1 for none), `value`, `step`, `output` and `meaning`.

    Args:
        folder: That of the process.
        limit: Rows of later records are left out.
    """
    try:
        content = (folder / NUMBERS_FILE).read_bytes()
    except OSError:
        content = b""
    # A row that breaks off was being written when the process was killed.
    rows = np.frombuffer(content[: len(content) // _ROW.size * _ROW.size], dtype=_DTYPE)
    rows = rows[(rows["step"] >= 0) & (rows["record"] >= 0)]
    return rows if limit is None else rows[rows["record"] < limit]
