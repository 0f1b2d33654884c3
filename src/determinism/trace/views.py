"""Views of records: several streams as one process, and a process without its first records."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from determinism.op_semantics import Op
from determinism.trace.chunks import Array, Children, Chunk, Decoder, Names, cut
from determinism.trace.kept_values import NUMBERS_DTYPE
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import NONE, Table
from determinism.types import NO_DIGEST, Phase, Role

# Several streams of one run, read as if one process had written them in sequence.

_NAMED_COLUMNS = {
    "op": Table.OP,
    "module": Table.MODULE,
    "stack": Table.STACK,
    "forward_stack": Table.STACK,
    "arguments": Table.ARGUMENTS,
}
_WITH_LAYOUTS = ("inputs", "outputs")


class JoinedNames(Names):
    """The names of several streams; the numbers of each stream's names continue those of the previous one."""

    def __init__(self, parts: Sequence[Names]) -> None:
        self._parts = parts
        self._texts = {table: [] for table in Table}
        # The folder to report if a text is damaged: the one with the folders of all streams.
        self.folder = parts[0].folder.parent if parts else Path()
        self.shifts: list[dict[Table, int]] = []
        """For each stream and table, the offset added to its numbers."""
        for part in parts:
            shifts = {table: len(texts) for table, texts in self._texts.items()}
            self.shifts.append(shifts)
            for table in Table:
                self._texts[table] += part.texts(table) if table is not Table.STACK else []
            stacks = [[number + shifts[Table.FRAME] for number in stack] for stack in part.stack_frames]
            self._texts[Table.STACK] += map(json.dumps, stacks)

    @cached_property
    def ops(self) -> list[Op]:
        """Every op of every stream."""
        return [op for part in self._parts for op in part.ops]


class JoinedStreams(ProcessTrace):
    """Several streams of one run; record numbers continue from stream to stream, so edges stay as they are."""

    def __init__(self, key: str, streams: Sequence[ProcessTrace]) -> None:
        """Join streams.

        Args:
            key: The key of the joined process.
            streams: The streams; an empty list makes an empty process.
        """
        # The folder to report if something is damaged: the one with the folders of all streams.
        folder = streams[0].folder.parent if streams else Path()
        super().__init__(folder, key, streams[0].description if streams else {})
        self.streams = streams
        self._starts = [0]
        self._latest: Chunk | None = None

    @cached_property
    def names(self) -> JoinedNames:
        """The tables of names of all streams."""
        return JoinedNames([stream.names for stream in self.streams])

    def chunks(self, decoder: Decoder | None = None) -> Iterator[Chunk]:
        """Yield every record of every stream."""
        for index, stream in enumerate(self.streams):
            start = end = self._starts[index]
            for chunk in stream.chunks(decoder):
                end = start + chunk.first + chunk.rows
                yield self._shifted(index, start, chunk)
            # A pass that ends early must not discard the starts that an earlier one found.
            if len(self._starts) == index + 1:
                self._starts.append(end)
        self.truncated = any(stream.truncated for stream in self.streams)

    def until(self, limit: int | None) -> JoinedStreams:
        """The same streams, as if they had no more than this many records in total; None for all."""
        kept = []
        for stream in self.streams:
            records, _ = stream.extent
            kept.append(stream if limit is None or records <= limit else stream.until(limit))
            limit = None if limit is None else max(limit - records, 0)
        return self._of(kept)

    def since(self, step: int) -> JoinedStreams:
        """The same streams, as if each had begun with this step."""
        return self._of([stream.since(step) for stream in self.streams])

    def _of(self, streams: Sequence[ProcessTrace]) -> JoinedStreams:
        joined = JoinedStreams(self.key, streams)
        joined.description = self.description
        return joined

    @cached_property
    def numbers(self) -> np.ndarray[Any, Any]:
        """The recorded numbers, such as losses, with joined record numbers."""
        found, start = [], 0
        for stream in self.streams:
            rows = stream.numbers.copy()
            for field in ("record", "producer"):
                rows[field] += np.where(rows[field] >= 0, start, 0)
            found.append(rows)
            start += stream.extent[0]
        return np.concatenate(found) if found else np.zeros(0, NUMBERS_DTYPE)

    @property
    def stopped_by(self) -> str | None:
        """Why recording stopped early, in the first stream in which it did."""
        return next((stream.stopped_by for stream in self.streams if stream.stopped_by is not None), None)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The total number of records, and the largest number of steps of a stream."""
        extents = [stream.extent for stream in self.streams]
        return sum(records for records, _ in extents), max((steps for _, steps in extents), default=0)

    def record(self, number: int) -> tuple[Chunk, int]:
        """The chunk that holds one record, and its position there; `chunks` must have passed it."""
        if self._latest is None or not 0 <= number - self._latest.first < self._latest.rows:
            index, own = self.place(number)
            chunk, _ = self.streams[index].record(own)
            self._latest = self._shifted(index, number - own, chunk)
        return self._latest, number - self._latest.first

    def place(self, number: int) -> tuple[int, int]:
        """Position of the stream that has a record, and the record's number there."""
        index = bisect_right(self._starts, number, hi=min(len(self._starts), len(self.streams))) - 1
        return index, number - self._starts[index]

    def stream_of(self, numbers: Array) -> Array:
        """Position of the stream that has each of these records."""
        return np.searchsorted(self._starts[: len(self.streams)], numbers, side="right") - 1

    def _shifted(self, index: int, start: int, chunk: Chunk) -> Chunk:
        if not index:
            return chunk
        shifts = self.names.shifts[index]
        named = {name: _grown(chunk.columns[name], shifts[table]) for name, table in _NAMED_COLUMNS.items()}
        children = dict(chunk.children)
        for group in _WITH_LAYOUTS:
            entries = children[group]
            cells = {**entries.columns, "layout": _grown(entries.columns["layout"], shifts[Table.LAYOUT])}
            children[group] = entries._replace(columns=cells)
        return replace(chunk, first=start + chunk.first, columns={**chunk.columns, **named}, children=children)


def _grown(numbers: Array, shift: int) -> Array:
    return np.where(numbers == NONE, NONE, numbers + shift)


class TraceSuffix(ProcessTrace):
    """A process without its first records; the rest are numbered from 0.

    An input that was made before has no producer, but the digest of the producer's output, if the whole output was read.
    """

    def __init__(
        self,
        process: ProcessTrace,
        start: int,
        *,
        steps_before: int = 0,
        forward_until: int = 0,
        unseen: Sequence[int] = (),
        skipped: Sequence[int] = (),
        without: Mapping[int, Array] | None = None,
    ) -> None:
        """View the rest of a process.

        Args:
            process: The whole process.
            start: Number of the first record of the suffix.
            steps_before: Added to the number of each step.
            forward_until: Number of a record (of the whole process). Earlier records in phases `INIT` or `OTHER` count as forward.
            unseen: Numbers of later records (of the whole process) that are treated as producers like those before the suffix.
            skipped: Numbers of further such records that do not take part themselves either. Only their places remain: they
                have neither inputs nor outputs, and no thread, so that nothing pairs with them.
            without: For records (of the whole process), by number, the positions of inputs to ignore. Such a record has no
                arguments, since they name what it read.

        Raises:
            TraceError: The trace is damaged.
        """
        super().__init__(process.folder, process.key, process.description)
        self._whole = process.until(None)
        self.start = start
        self._steps_before = steps_before
        self._forward_until = forward_until
        self._unseen = np.array([*unseen, *skipped], dtype=np.int64)
        self.skipped: Array = np.array(skipped, dtype=np.int64)
        self._without = dict(without or {})
        self._left: dict[tuple[int, int], tuple[int, bytes]] = {}

    @cached_property
    def names(self) -> Names:
        """The tables of names, including those of the first records."""
        return self._whole.names

    @cached_property
    def numbers(self) -> Array:
        """The recorded numbers of the whole process, such as losses, with its own record numbers."""
        return self._whole.numbers

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The number of records and of steps of the whole process."""
        return self._whole.extent

    @property
    def stopped_by(self) -> str | None:
        """Why recording stopped before the process ended."""
        return self._whole.stopped_by

    def until(self, limit: int | None) -> TraceSuffix:
        """Not supported: a suffix is compared as a whole."""
        raise NotImplementedError

    def since(self, step: int) -> TraceSuffix:
        """Not supported: a suffix is compared as a whole."""
        raise NotImplementedError

    def chunks(self, decoder: Decoder | None = None) -> Iterator[Chunk]:
        """Yield every record of the suffix in order."""
        for chunk in self._whole.chunks(decoder):
            if chunk.first + chunk.rows > self.start:
                yield self._seen(cut(chunk, max(self.start - chunk.first, 0), chunk.rows))
        self.truncated = self._whole.truncated

    def record(self, number: int) -> tuple[Chunk, int]:
        """The chunk that holds one record, and its position there; `chunks` must have passed it."""
        chunk, row = self._whole.record(number + self.start)
        before = max(self.start - chunk.first, 0)
        return self._seen(cut(chunk, before, chunk.rows)), row - before

    def _seen(self, chunk: Chunk) -> Chunk:
        """Records as the suffix shows them: numbered from 0, without references to earlier ones."""
        chunk = self._bared(chunk)
        inputs, digests = self._detached(chunk)
        forward, phase = chunk.columns["forward"], chunk.columns["phase"]
        is_forward = (chunk.numbers < self._forward_until) & np.isin(phase, (Phase.INIT, Phase.OTHER))
        columns = {
            **chunk.columns,
            "phase": np.where(is_forward, Phase.FORWARD, phase).astype(phase.dtype),
            "step": chunk.columns["step"] + np.int32(self._steps_before),
            "forward": np.where(chunk.numbers - forward < self.start, 0, forward).astype(np.int32),
        }
        children = {**chunk.children, "inputs": inputs, "input_digests": digests}
        if (is_skipped := np.isin(chunk.numbers, self.skipped)).any():
            columns["thread"] = np.where(is_skipped, NONE, columns["thread"]).astype(np.int32)
            # A loss that only one run has would count as a difference.
            columns["role"] = np.where(is_skipped, Role.OP, columns["role"]).astype(columns["role"].dtype)
            children = {name: _only(entries, entries.spread(~is_skipped)) for name, entries in children.items()}
        return replace(chunk, first=chunk.first - self.start, columns=columns, children=children)

    def _bared(self, chunk: Chunk) -> Chunk:
        """The records without the ignored inputs."""
        rows = [n - chunk.first for n in self._without if 0 <= n - chunk.first < chunk.rows]
        if not rows:
            return chunk
        inputs, digests = chunk.children["inputs"], chunk.children["input_digests"]
        kept = np.ones(int(inputs.starts[-1]), dtype=bool)
        for row in rows:
            kept[inputs.starts[row] + self._without[chunk.first + row]] = False
        before = np.concatenate([[0], np.cumsum(kept)])
        owner = digests.owners
        place = inputs.starts[owner] + digests.columns["position"]
        positions = (before[place] - before[inputs.starts[owner]]).astype(digests.columns["position"].dtype)
        digested = _only(digests._replace(columns={**digests.columns, "position": positions}), kept[place])
        arguments = chunk.columns["arguments"].copy()
        arguments[rows] = NONE
        children = {**chunk.children, "inputs": _only(inputs, kept), "input_digests": digested}
        return replace(chunk, columns={**chunk.columns, "arguments": arguments}, children=children)

    def _detached(self, chunk: Chunk) -> tuple[Children, Children]:
        inputs, digests = chunk.children["inputs"], chunk.children["input_digests"]
        distance = inputs.columns["producer"]
        owner = inputs.owners
        producers = chunk.first + owner - distance
        before = (distance != 0) & ((producers < self.start) | np.isin(producers, self._unseen))
        if not before.any():
            return inputs, digests
        digested = digests.owners
        known = set(zip(digested.tolist(), digests.columns["position"].tolist(), strict=True))
        found: list[tuple[int, int, bytes]] = []
        for at in np.flatnonzero(before):
            row, position = int(owner[at]), int(at - inputs.starts[owner[at]])
            layout, digest = self._output(chunk.first + row - int(distance[at]), int(inputs.columns["output"][at]))
            if digest != NO_DIGEST and layout == int(inputs.columns["layout"][at]) and (row, position) not in known:
                found.append((row, position, digest))
        cells = {**inputs.columns, "producer": np.where(before, 0, distance).astype(distance.dtype)}
        return Children(inputs.starts, cells), _with(digests, digested, found)

    def _output(self, number: int, output: int) -> tuple[int, bytes]:
        """Layout and digest of an output of a record."""
        if (number, output) not in self._left:
            chunk, row = self._whole.record(number)
            outputs = chunk.children["outputs"]
            if output >= len(outputs.of(row)):
                return -1, NO_DIGEST
            at = outputs.of(row)[output]
            self._left[number, output] = int(outputs.columns["layout"][at]), outputs.columns["digest"][at].tobytes()
        return self._left[number, output]


def _only(entries: Children, kept: Array) -> Children:
    """Some of the entries, by a mask."""
    starts = np.concatenate([[0], np.cumsum(kept)])[entries.starts]
    return Children(starts, {name: cells[kept] for name, cells in entries.columns.items()})


def _with(digests: Children, owner: Array, found: list[tuple[int, int, bytes]]) -> Children:
    """Merge the found digests into digests of inputs, in the order of records and positions."""
    if not found:
        return digests
    rows = np.concatenate([owner, [row for row, _, _ in found]]).astype(np.int64)
    position = digests.columns["position"]
    positions = np.concatenate([position, [at for _, at, _ in found]]).astype(position.dtype)
    made = np.frombuffer(b"".join(digest for _, _, digest in found), dtype=np.uint64).reshape(-1, 2)
    cells = np.concatenate([digests.columns["digest"].reshape(-1, 2), made])
    order = np.lexsort((positions, rows))
    starts = np.searchsorted(rows[order], np.arange(len(digests.starts)))
    return Children(starts, {"position": positions[order], "digest": cells[order]})
