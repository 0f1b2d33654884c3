"""Fingerprints of records: two numbers each, equal for equal work wherever and whenever it was done.

A record has a place in the program (role, op, stack, module, arguments), inputs and outputs. Inputs count by their
content, not by their producers: work that is stolen, interleaved or fetched ahead appears at a different place in the
stream each time. The numbers are 64 bits wide and mixed by the finaliser of SplitMix64; their sums over all records do
not depend on the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from determinism.comparison.columns import Canonical, producers
from determinism.trace.chunks import Array, Children, Chunk
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import family
from determinism.types import Access, Role, Stream

_HELD_ROWS = 1 << 20
_SEEDS = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], dtype=np.uint64)
_KEPT = (Role.STATE, Role.HELD)
"""What a pool process holds at the end of a step depends on the work it happened to get; for a thread, only on the thread."""


class Fingerprints(NamedTuple):
    """Two numbers per record for each aspect."""

    task: Array
    """The place and the inputs."""
    read: Array
    """The inputs alone; zeros where there are none."""
    work: Array
    """The task and its results."""


class Produced:
    """The outputs that records of one process left; holds the latest ones, and rereads older ones."""

    def __init__(self, process: ProcessTrace) -> None:
        self._process = process
        self._held: deque[tuple[int, int, Children]] = deque()
        self._rows = 0

    def add(self, chunk: Chunk) -> None:
        """Hold the outputs of the next records."""
        self._held.append((chunk.first, chunk.rows, chunk.children["outputs"]))
        self._rows += chunk.rows
        while self._rows - self._held[0][1] > _HELD_ROWS:
            self._rows -= self._held.popleft()[1]

    def digests(self, producers: Array, outputs: Array) -> Array:
        """Return the digest of each output; zeros for producer -1, and where nothing was digested."""
        found = np.zeros((len(producers), 2), dtype=np.uint64)
        firsts = np.array([first for first, _, _ in self._held], dtype=np.int64)
        known = (producers >= firsts[0]) if len(firsts) else np.zeros(len(producers), dtype=bool)
        block = np.searchsorted(firsts, producers[known], side="right") - 1
        positions = np.flatnonzero(known)
        for index in np.unique(block):
            first, _, made = self._held[index]
            _take(found, positions[block == index], producers, outputs, first, made)
        older = np.flatnonzero(~known & (producers >= 0))
        older = older[np.argsort(producers[older], kind="stable")]
        while len(older):
            chunk, _ = self._process.record(int(producers[older[0]]))
            end = np.searchsorted(producers[older], chunk.first + chunk.rows)
            _take(found, older[:end], producers, outputs, chunk.first, chunk.children["outputs"])
            older = older[end:]
        return found


def _take(found: Array, at: Array, producers: Array, outputs: Array, first: int, made: Children) -> None:
    rows = producers[at] - first
    entries = made.starts[rows] + outputs[at]
    there = entries < made.starts[rows + 1]
    found[at[there]] = made.columns["digest"][entries[there]]


def input_contents(chunk: Chunk, produced: Produced) -> tuple[Array, Array]:
    """Return, per input entry, what its producer left there, and what it held when it was read, where that was digested."""
    inputs = chunk.children["inputs"]
    left = produced.digests(producers(chunk), inputs.columns["output"])
    held = left.copy()
    digests = chunk.children["input_digests"]
    at = digests.spread(inputs.starts[:-1]) + digests.columns["position"]
    there = at < len(held)
    held[at[there]] = digests.columns["digest"][there]
    return left, held


def fingerprints(chunk: Chunk, held: Array, canonical: Canonical, side: int) -> Fingerprints:
    """Compute the fingerprints of records of a run, 0 or 1, given the content of each input entry."""
    task = np.repeat(_SEEDS[None, :], chunk.rows, axis=0)
    columns = [chunk.columns["role"]]
    for name, numbers in (
        ("op", canonical.ops), ("module", canonical.modules), ("stack", canonical.stacks),
        ("arguments", canonical.arguments),
    ):  # fmt: skip
        columns.append(numbers[side][chunk.columns[name]])
    for column in columns:
        task = _mix(task ^ column.astype(np.int64).view(np.uint64)[:, None])
    inputs, outputs, generators = (chunk.children[name] for name in ("inputs", "outputs", "generators"))
    layouts = canonical.layouts[side]
    reads = inputs.columns["access"] == Access.READ
    read = _sums(inputs.starts, _entries(inputs, held, layouts[inputs.columns["layout"]]), reads)
    task = _mix(task ^ read)
    made = _entries(outputs, outputs.columns["digest"], layouts[outputs.columns["layout"]])
    drawn = _entries(generators, generators.columns["digest"], None)
    work = _mix(task + _sums(outputs.starts, made))
    return Fingerprints(task, read, _mix(work + _sums(generators.starts, drawn)))


def given(chunk: Chunk, held: Array) -> Array:
    """Return two numbers per record for those of its inputs that no record of its stream made."""
    inputs = chunk.children["inputs"]
    is_given = (inputs.columns["access"] == Access.READ) & (inputs.columns["producer"] == 0)
    return _sums(inputs.starts, _entries(inputs, held, None), is_given)


def stream_fingerprints(process: ProcessTrace, canonical: Canonical, side: int) -> Iterator[tuple[Chunk, Array, Array]]:
    """Yield, chunk by chunk, the records, the positions of those that count, and the fingerprints of their work."""
    produced = Produced(process)
    uncounted = () if process.description.get("stream") == Stream.THREADS else _KEPT
    for chunk in process.chunks():
        produced.add(chunk)
        counted = np.flatnonzero(~np.isin(chunk.columns["role"], uncounted))
        _, held = input_contents(chunk, produced)
        yield chunk, counted, fingerprints(chunk, held, canonical, side).work[counted]


def _entries(children: Children, digests: Array, layouts: Array | None) -> Array:
    """Return two numbers per list entry, mixed from its position in the list, its layout and its content."""
    place = children.places if layouts is None else children.places + (layouts.astype(np.int64) << 20)
    mixed = _mix(_SEEDS + place.view(np.uint64)[:, None])
    mixed = _mix(mixed ^ digests[:, :1])
    return _mix(mixed ^ digests[:, 1:])


def _sums(starts: Array, entries: Array, counted: Array | None = None) -> Array:
    """Return the sum of the entries of each list."""
    sums = np.zeros((len(entries) + 1, 2), dtype=np.uint64)
    np.cumsum(entries if counted is None else np.where(counted[:, None], entries, 0), axis=0, out=sums[1:])
    return np.asarray(sums[starts[1:]] - sums[starts[:-1]])


def _mix(numbers: Array) -> Array:
    """Spread every bit of a 64-bit number over all of its bits."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)))


# Which streams of two runs are compared with each other: in order, or as a multiset.


@dataclass
class Streams:
    """Unordered streams of both runs that belong together; a run may have none of them."""

    stream: Stream
    part_of: str
    first: list[ProcessTrace] = field(default_factory=list)
    second: list[ProcessTrace] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Their common name."""
        return f"{self.part_of}, {self.stream}"

    @property
    def some(self) -> ProcessTrace:
        """One of them."""
        return (self.first or self.second)[0]

    @property
    def started(self) -> float:
        """When the first of them began to record, in seconds since 1970."""
        return min(float(stream.description.get("started") or 0.0) for stream in self.first or self.second)


def stream_of(process: ProcessTrace) -> Stream:
    """Return the kind of a stream, which says how its records are ordered."""
    return Stream(process.description.get("stream") or Stream.PROCESS)


def reported_process(process: ProcessTrace) -> str:
    """Return the key of the process that a stream belongs to."""
    is_own = stream_of(process) is not Stream.THREADS
    return process.key if is_own else str(process.description.get("part_of") or process.key)


def ordered(trace: Trace) -> list[ProcessTrace]:
    """Return the processes whose records are in the order of the program."""
    return [process for process in trace.processes if stream_of(process) is Stream.PROCESS]


def unordered(first: Trace, second: Trace) -> Sequence[Streams]:
    """Return the streams whose records are a multiset, grouped by what they belong to."""
    found: dict[tuple[str, Stream], Streams] = {}
    for side, trace in enumerate((first, second)):
        for process in trace.processes:
            stream = stream_of(process)
            if stream is Stream.PROCESS:
                continue
            part_of = str(process.description.get("part_of") or process.key)
            streams = found.setdefault((part_of, stream), Streams(stream, part_of))
            (streams.first, streams.second)[side].append(process)
    return [found[key] for key in sorted(found)]


def streams_sharing_work(first: Trace, second: Trace) -> Sequence[Streams]:
    """Return child processes that may share work, such as those that take tasks from one queue, as if they were a pool.

    They are the processes that `multiprocessing` merely numbers, if both runs have the same number and more than one.
    """
    sides: list[dict[str, list[ProcessTrace]]] = []
    for trace in (first, second):
        families: dict[str, list[ProcessTrace]] = {}
        for process in ordered(trace):
            name = family(process.key)
            if name.endswith("Process-"):
                families.setdefault(name, []).append(process)
        sides.append(families)
    mine, others = sides
    return [
        Streams(Stream.POOL, name.rpartition(".")[0], mine[name], others[name])
        for name in sorted(mine.keys() & others.keys())
        if len(mine[name]) == len(others[name]) > 1
    ]


def total(process: ProcessTrace, canonical: Canonical, side: int) -> tuple[int, tuple[int, ...]]:
    """Return the number of records, and the sum of their fingerprints, which does not depend on their order."""
    rows, total = 0, np.zeros(2, dtype=np.uint64)
    for _, counted, prints in stream_fingerprints(process, canonical, side):
        rows += len(counted)
        total += prints.sum(axis=0, dtype=np.uint64)
    return rows, tuple(total.tolist())
