"""Finds for a record that only one run has the one that stands in its place in the other run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import numpy as np

from determinism.comparison.align import Pairing, join, repaired
from determinism.comparison.canonical import Canonical
from determinism.comparison.fingerprints import Fingerprints
from determinism.comparison.received import Pair
from determinism.trace.chunk import Array, Chunk
from determinism.trace.joined import JoinedStreams

Sides = tuple[JoinedStreams, JoinedStreams]


class Partners:
    """Pairs records at the same place in the program: the role, op, module and stack."""

    def __init__(
        self,
        chunks: tuple[Chunk, Chunk],
        processes: Sides,
        canonical: Canonical,
        prints: Sequence[Fingerprints],
        given: Sequence[Array],
    ) -> None:
        """Take the records.

        Args:
            chunks: Those of each run.
            processes: What they were picked from.
            canonical: Numbers for names.
            prints: Per run and record what tells its place, arguments and inputs.
            given: Per run and record what tells the inputs that come from outside its stream.
        """
        self._chunks = chunks
        self._tasks = [of_side.task.view(np.int64) for of_side in prints]
        self._read = [_or_nothing(of_side.read.view(np.int64), side) for side, of_side in enumerate(prints)]
        self._given = [numbers.view(np.int64) for numbers in given]
        self._places: list[Array] = []
        self._arguments: list[Array] = []
        self._streams: list[Array] = []
        indices: dict[str, int] = {}
        for side, (chunk, process) in enumerate(zip(chunks, processes, strict=True)):
            columns = [chunk.columns["role"].astype(np.int64)]
            for name, numbers in (("op", canonical.ops), ("module", canonical.modules), ("stack", canonical.stacks)):
                columns.append(numbers[side][chunk.columns[name]].astype(np.int64))
            self._places.append(np.stack(columns, axis=1))
            self._arguments.append(canonical.arguments[side][chunk.columns["arguments"]].astype(np.int64)[:, None])
            own = np.array([indices.setdefault(stream.key, len(indices)) for stream in process.streams], dtype=np.int64)
            self._streams.append(own[process.stream_of(chunk.numbers)][:, None])

    def pairing(self, *, across: bool, received: Set[Pair]) -> Pairing:
        """Pair the makers of values that were received, then records with equal inputs, also where they got other
        arguments, then those that were given the same from outside, then those of the same stream.

        Args:
            across: Whether records of different streams may pair.
            received: Values that another stream received, with their digests in both runs.
        """
        alone = Pairing(
            np.concatenate([np.arange(self._chunks[0].rows), np.full(self._chunks[1].rows, -1)]),
            np.concatenate([np.full(self._chunks[0].rows, -1), np.arange(self._chunks[1].rows)]),
        )
        made = self._makers(received)
        left, right = [made[:, 0]], [made[:, 1]]
        rest = [np.setdiff1d(np.arange(c.rows), used) for c, used in zip(self._chunks, made.T, strict=True)]
        for keys in self._keys(across=across):
            if not (len(rest[0]) and len(rest[1])):
                break
            at = join(keys[0][rest[0]], keys[1][rest[1]])
            left.append(rest[0][at[0]])
            right.append(rest[1][at[1]])
            rest = [np.delete(rows, used) for rows, used in zip(rest, at, strict=True)]
        nothing = np.zeros(0, dtype=np.int64)
        return repaired(alone, nothing, np.concatenate(left), np.concatenate(right))

    def _keys(self, *, across: bool) -> Iterator[list[Array]]:
        """What pairs must have in common: much at first, then less."""
        arguments, streams = self._arguments, self._streams
        within = [[self._given, arguments, streams], [arguments, streams], [streams]]
        if across:
            turns = [
                [self._tasks],
                [self._read, streams],
                [self._read],
                within[0],
                [self._given, arguments],
                *within[1:],
                [arguments],
                [],
            ]
        else:
            turns = [[self._tasks, streams], [self._read, streams], *within]
        for parts in turns:
            yield [np.concatenate([self._places[side], *(part[side] for part in parts)], axis=1) for side in (0, 1)]

    def _makers(self, received: Set[Pair]) -> Array:
        """Positions of the records that made received values in both runs, and of what these were made from."""
        if not received:
            return np.zeros((0, 2), dtype=np.int64)
        makers = [_makers(chunk, {pair[side] for pair in received}) for side, chunk in enumerate(self._chunks)]
        sources = [_sources(chunk) for chunk in self._chunks]
        waiting = [
            (mine, other)
            for first, second in sorted(received)
            for mine, other in zip(makers[0].get(first, ()), makers[1].get(second, ()), strict=False)
        ]
        partner: dict[int, int] = {}
        used: set[int] = set()
        while waiting:
            mine, other = waiting.pop()
            if mine in partner or other in used or (self._places[0][mine] != self._places[1][other]).any():
                continue
            partner[mine] = other
            used.add(other)
            read = (_rows_read(self._chunks[side], sources[side], row) for side, row in enumerate((mine, other)))
            waiting += [pair for pair in zip(*read, strict=False) if min(pair) >= 0]
        return np.array(sorted(partner.items()), dtype=np.int64).reshape(-1, 2)


def _or_nothing(read: Array, side: int) -> Array:
    """What records read; of those that read nothing a number that no other has."""
    alone = np.stack([np.arange(len(read)), np.full(len(read), side)], axis=1)
    return np.where(read.any(axis=1, keepdims=True), read, alone)


def _makers(chunk: Chunk, wanted: set[bytes]) -> dict[bytes, list[int]]:
    """Positions of the records that gave outputs with these digests."""
    outputs = chunk.children["outputs"]
    digests = outputs.columns["digest"]
    owner = np.repeat(np.arange(chunk.rows), np.diff(outputs.starts))
    heads = np.frombuffer(b"".join(digest[:8] for digest in wanted), dtype=np.uint64)
    found: dict[bytes, list[int]] = {}
    for entry in np.flatnonzero(np.isin(digests[:, 0], heads)):
        found.setdefault(digests[entry].tobytes(), []).append(int(owner[entry]))
    return found


def _sources(chunk: Chunk) -> Array:
    """Per input entry the position of its producer among the records; -1 where that is not one of them."""
    numbers = producers(chunk)
    if not chunk.rows:
        return numbers
    at = np.minimum(np.searchsorted(chunk.numbers, numbers), chunk.rows - 1)
    return np.where(chunk.numbers[at] == numbers, at, -1)


def _rows_read(chunk: Chunk, sources: Array, row: int) -> list[int]:
    starts = chunk.children["inputs"].starts
    return [int(source) for source in sources[starts[row] : starts[row + 1]]]


def producers(chunk: Chunk) -> Array:
    """Per input entry the number of the record that produced it; -1 for external."""
    inputs = chunk.children["inputs"]
    distance = inputs.columns["producer"].astype(np.int64)
    owner = np.repeat(chunk.numbers, np.diff(inputs.starts))
    return np.where(distance == 0, -1, owner - distance)
