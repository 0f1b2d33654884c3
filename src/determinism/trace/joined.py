"""Several streams of one run, read as if one process had written them one after the other."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from determinism.trace.chunk import Array, Chunk
from determinism.trace.decoder import Decoder
from determinism.trace.names import Names
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import NONE, Table

_NAMED_COLUMNS = {
    "op": Table.OP,
    "module": Table.MODULE,
    "stack": Table.STACK,
    "forward_stack": Table.STACK,
    "arguments": Table.ARGUMENTS,
}
_WITH_LAYOUTS = ("inputs", "outputs")


class JoinedNames(Names):
    """The names of several streams; those of each are numbered on from those of the one before."""

    def __init__(self, parts: Sequence[Names]) -> None:
        self._texts = {table: [] for table in Table}
        # What to name if a text is damaged: the folder that holds those of all.
        self.folder = parts[0].folder.parent if parts else Path()
        self.shifts: list[dict[Table, int]] = []
        """Per stream and table: by how much its numbers grow."""
        for part in parts:
            shifts = {table: len(texts) for table, texts in self._texts.items()}
            self.shifts.append(shifts)
            for table in Table:
                self._texts[table] += part.texts(table) if table is not Table.STACK else []
            frames = shifts[Table.FRAME]
            self._texts[Table.STACK] += [json.dumps([n + frames for n in stack]) for stack in part.stack_frames]


class JoinedStreams(ProcessTrace):
    """Several streams of one run; records are numbered on from stream to stream, so edges stay as they are."""

    def __init__(self, key: str, streams: Sequence[ProcessTrace]) -> None:
        """Join streams.

        Args:
            key: What to call them together.
            streams: None at all are an empty process.
        """
        self.key = key
        self.streams = streams
        self.description = streams[0].description if streams else {}
        self._starts = [0]
        self._latest: Chunk | None = None

    @cached_property
    def names(self) -> JoinedNames:
        """The tables of names of all streams."""
        return JoinedNames([stream.names for stream in self.streams])

    def chunks(self, decoder: Decoder | None = None) -> Iterator[Chunk]:
        """Every record of every stream."""
        self._starts = [0]
        for index, stream in enumerate(self.streams):
            start = end = self._starts[-1]
            for chunk in stream.chunks(decoder):
                end = start + chunk.first + chunk.rows
                yield self._shifted(index, start, chunk)
            self._starts.append(end)

    def record(self, number: int) -> tuple[Chunk, int]:
        """The chunk that holds one record and its position there; `chunks` must have passed it."""
        if self._latest is None or not 0 <= number - self._latest.first < self._latest.rows:
            index, own = self.place(number)
            chunk, _ = self.streams[index].record(own)
            self._latest = self._shifted(index, number - own, chunk)
        chunk = self._latest
        return chunk, number - chunk.first

    def place(self, number: int) -> tuple[int, int]:
        """Which stream holds a record, and the record's number there."""
        index = bisect_right(self._starts, number, hi=len(self.streams)) - 1
        return index, number - self._starts[index]

    def stream_of(self, numbers: Array) -> Array:
        """Which stream holds each of these records, by position."""
        return np.searchsorted(self._starts[: len(self.streams)], numbers, side="right") - 1

    def _shifted(self, index: int, start: int, chunk: Chunk) -> Chunk:
        if not index:
            return chunk
        shifts = self.names.shifts[index]
        columns = dict(chunk.columns)
        for name, table in _NAMED_COLUMNS.items():
            columns[name] = _grown(columns[name], shifts[table])
        children = dict(chunk.children)
        for group in _WITH_LAYOUTS:
            entries = children[group]
            cells = {**entries.columns, "layout": _grown(entries.columns["layout"], shifts[Table.LAYOUT])}
            children[group] = entries._replace(columns=cells)
        return replace(chunk, first=start + chunk.first, columns=columns, children=children)


def _grown(numbers: Array, shift: int) -> Array:
    return np.where(numbers == NONE, NONE, numbers + shift)
