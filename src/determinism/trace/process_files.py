"""The files of the trace of one process, and how many bytes they may still take."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from determinism.trace.batches import written_bytes
from determinism.trace.kept_values import ValuesWriter
from determinism.trace.names_writer import NamesWriter
from determinism.trace.numbers import NumbersWriter
from determinism.trace.records_writer import RecordsWriter
from determinism.trace.spool import Spool

_DOCUMENT_BYTES = 16384
"""What the manifest and `process.json` may take."""
_HEADER_BYTES = 4096
_LINE_BYTES = 64


class ProcessFiles:
    """Records, names, numbers and kept values, each in a file; together they stay within a limit."""

    def __init__(self, folder: Path, max_bytes: int | None) -> None:
        """Create them.

        Args:
            folder: An existing folder that belongs to this process alone.
            max_bytes: All of them together, and what describes the process, never take more; None for no limit.

        Raises:
            OSError: They cannot be created.
        """
        self.max_bytes = max_bytes
        self.names = NamesWriter(folder)
        self.records = RecordsWriter(folder)
        self.numbers = NumbersWriter(folder)
        self.values = ValuesWriter(folder)
        self.all = (self.records, self.names, self.numbers, self.values)

    @property
    def bytes_on_disk(self) -> int:
        """What they take, the spool included."""
        return self._bytes_written + self.records.spool_bytes

    @property
    def room(self) -> int | None:
        """How many bytes may still come; None for any number."""
        return None if self.max_bytes is None else self.max_bytes - self.bytes_on_disk

    @property
    def _bytes_written(self) -> int:
        return sum(file.bytes_written for file in self.all) + _DOCUMENT_BYTES

    def has_room_for_name(self, text: str) -> bool:
        """Whether a name still fits."""
        room = self.room
        return room is None or len(text) + _LINE_BYTES <= room

    def has_room_for_batch(self, batch: pa.RecordBatch) -> bool:
        """Whether a batch still fits."""
        room = self.room
        return room is None or batch.nbytes + _HEADER_BYTES <= room or written_bytes(batch) <= room

    def open_spool(self, record_capacity: int, child_capacity: int) -> Spool:
        """Put an empty spool in the place of the one that there is; see `RecordsWriter.open_spool`."""
        room = None if self.max_bytes is None else self.max_bytes - self._bytes_written
        return self.records.open_spool(record_capacity, child_capacity, room)

    def discard_pending(self) -> None:
        """Remove what held rows that are in the files by now."""
        self.records.discard_spool()
        self.names.discard_pending()
