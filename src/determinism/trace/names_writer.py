"""Writes the tables of names of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from determinism.trace.batches import NAMES_SCHEMA, WRITE_OPTIONS, batch_from_names
from determinism.trace.schema import NAMES_FILE, PENDING_NAMES_FILE, Table


class NamesWriter:
    """A stream of names, and beside it a file with those that are not in the stream yet."""

    def __init__(self, folder: Path) -> None:
        """Create both files.

        Raises:
            OSError: They cannot be created.
        """
        self._rows: list[tuple[int, int, str]] = []
        self._counts = [0] * len(Table)
        self._file = (folder / NAMES_FILE).open("wb")
        self._pending_path = folder / PENDING_NAMES_FILE
        self._pending = self._pending_path.open("wb", buffering=0)
        self._pending_bytes = 0
        self._stream: Any = pa.ipc.new_stream(self._file, NAMES_SCHEMA, options=WRITE_OPTIONS)

    @property
    def bytes_written(self) -> int:
        """How large both files are."""
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
            # A file name may hold bytes that are no UTF-8, which Arrow refuses.
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
            OSError: They could not be written; they still are in the pending file.
        """
        if not self._rows:
            return
        batch = batch_from_names(self._rows)
        if not has_room_for(batch):
            return
        self._stream.write_batch(batch)
        self._file.flush()
        self._rows.clear()
        self._pending.truncate(0)
        self._pending.seek(0)
        self._pending_bytes = 0

    def close(self) -> None:
        """End the stream.

        Raises:
            OSError: Its end could not be written.
        """
        try:
            self._stream.close()
        finally:
            self._pending.close()
            self._file.close()

    def discard_pending(self) -> None:
        """Remove the pending file: the stream has all."""
        self._pending_path.unlink(missing_ok=True)
