"""Writes the records of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from determinism.trace.batches import RECORD_SCHEMA, WRITE_OPTIONS, batch_from_spool
from determinism.trace.schema import RECORDS_FILE, SPOOL_FILE
from determinism.trace.spool import Spool
from determinism.trace.spool_file import spool_bytes


class RecordsWriter:
    """A stream of records, and a spool with those that are not in the stream yet."""

    def __init__(self, folder: Path) -> None:
        """Create the file of the stream.

        Raises:
            OSError: It cannot be created.
        """
        self._spool_path = folder / SPOOL_FILE
        self._file = (folder / RECORDS_FILE).open("wb")
        self._stream: Any = pa.ipc.new_stream(self._file, RECORD_SCHEMA, options=WRITE_OPTIONS)
        self.spool: Spool | None = None
        """None until the first one is opened."""

    @property
    def bytes_written(self) -> int:
        """How large the stream is."""
        return self._file.tell()

    @property
    def spool_bytes(self) -> int:
        """How large the spool is."""
        return 0 if self.spool is None else self.spool.size

    @property
    def num_waiting(self) -> int:
        """How many records wait in the spool."""
        return 0 if self.spool is None else self.spool.num_records

    def open_spool(self, record_capacity: int, child_capacity: int, room: int | None) -> Spool:
        """Put an empty spool in the place of the one that there is.

        Args:
            record_capacity: Room for so many records.
            child_capacity: Room for so many entries of each list.
            room: How many bytes the spool and as large a batch may take together.

        Raises:
            OSError: The disk has no room for it; or, without an `errno`, there is none within what is allowed.
        """
        size = spool_bytes(record_capacity, child_capacity)
        if room is not None and 2 * size > room:
            raise OSError(f"the {room} bytes that are left have no room for {size} bytes of records")
        first = 0 if self.spool is None else self.spool.first_record
        self.spool = Spool(self._spool_path, record_capacity, child_capacity, first)
        return self.spool

    def flush(self, has_room_for: Callable[[pa.RecordBatch], bool]) -> None:
        """Move the records to the stream, if there is room.

        Raises:
            OSError: They could not be written; they still are in the spool.
        """
        if not self.num_waiting or self.spool is None:
            return
        batch = batch_from_spool(self.spool.content())
        if not has_room_for(batch):
            return
        self._stream.write_batch(batch)
        self._file.flush()
        self.spool.restart()

    def stop(self, reason: str) -> None:
        """Say in the spool why nothing more will be recorded."""
        if self.spool is not None:
            self.spool.stop(reason)

    def close(self) -> None:
        """End the stream.

        Raises:
            OSError: Its end could not be written.
        """
        try:
            self._stream.close()
        finally:
            self._file.close()

    def discard_spool(self) -> None:
        """Remove the spool: the stream has all."""
        self._spool_path.unlink(missing_ok=True)
