"""Gives consecutive records in portions that the reader chooses."""

from __future__ import annotations

from collections.abc import Iterator

from determinism.trace.chunk import Chunk, cut, join


class RecordReader:
    """Gives consecutive records in portions that the caller chooses."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._held: list[Chunk] = []
        self._rows = 0

    def peek(self, rows: int) -> Chunk | None:
        """Up to `rows` next records, without moving on; None at the end."""
        while self._rows < rows and (chunk := next(self._chunks, None)) is not None:
            self._held.append(chunk)
            self._rows += chunk.rows
        if not self._held:
            return None
        joined = join(self._held)
        self._held = [joined]
        return cut(joined, 0, min(rows, joined.rows))

    def advance(self, rows: int) -> None:
        """Move on by `rows` records that `peek` gave."""
        joined = self._held[0]
        self._rows -= rows
        self._held = [cut(joined, rows, joined.rows)] if rows < joined.rows else []
