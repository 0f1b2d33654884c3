"""From the messages of a stream to chunks of records."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from determinism.trace.batches import RECORD_SCHEMA
from determinism.trace.chunk import Chunk, chunk_from_batch
from determinism.trace.soundness import is_whole


class _Decoded(NamedTuple):
    first: int
    message: Any
    chunk: Chunk | None


class Decoder:
    """Decodes messages; one that equals the last one in every byte gives the same chunk again.

    Two runs that did the same write the same bytes, as long as their batches end at the same records. Where one decoder
    serves both, that is half of the work, and who gets the same chunk twice need not compare what it holds.
    """

    def __init__(self) -> None:
        self._last: _Decoded | None = None

    def chunk(self, first: int, message: Any) -> Chunk | None:
        """The records of a message; None if the message cannot be what was written.

        Args:
            first: Number of its first record.
            message: As read from a stream, compressed.
        """
        last = self._last
        if last is None or first != last.first or not message.equals(last.message):
            last = self._last = _Decoded(first, message, _decode(first, message))
        return last.chunk


def _decode(first: int, message: Any) -> Chunk | None:
    try:
        batch = pa.ipc.read_record_batch(message, RECORD_SCHEMA)
    except (pa.ArrowException, OSError):
        return None
    return chunk_from_batch(first, batch) if is_whole(batch) else None
