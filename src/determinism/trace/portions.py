"""Gives consecutive records in portions that the reader chooses."""

from __future__ import annotations

from collections.abc import Iterator

from determinism.trace.chunk import Chunk, cut, join


class RecordReader:
    """Gives consecutive records in portions that the caller chooses."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._held: Chunk | None = None
        self._passed = 0
        """So many records of what is held lie behind."""

    def at_hand(self) -> Chunk | None:
        """The next records that lie together, without moving on; None at the end. They are views, nothing is copied."""
        if self._held is None:
            self._held, self._passed = next(self._chunks, None), 0
        return None if self._held is None else cut(self._held, self._passed, self._held.rows)

    def peek(self, rows: int) -> Chunk | None:
        """Up to `rows` next records, without moving on; None at the end."""
        if self._held is None or self._held.rows - self._passed < rows:
            self._join(rows)
        if self._held is None:
            return None
        return cut(self._held, self._passed, min(self._passed + rows, self._held.rows))

    def _join(self, rows: int) -> None:
        """Hold at least so many records together, if there are as many."""
        chunk = self.at_hand()
        if chunk is None:
            return
        parts, count = [chunk], chunk.rows
        while count < rows and (following := next(self._chunks, None)) is not None:
            parts.append(following)
            count += following.rows
        if len(parts) > 1:
            self._held, self._passed = join(parts), 0

    def advance(self, rows: int) -> None:
        """Move on by `rows` records that `at_hand` or `peek` gave."""
        self._passed += rows
        if self._held is not None and self._passed >= self._held.rows:
            self._held = None
