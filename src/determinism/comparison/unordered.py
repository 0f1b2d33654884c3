"""Compares streams without a fixed order: threads, pools of processes, the workers of a data loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from determinism.comparison.columns import Canonical, producers
from determinism.comparison.divergence import Divergence
from determinism.comparison.fingerprints import Streams, reported_process
from determinism.comparison.flow import Flow
from determinism.comparison.kind import Threads, as_changed_by_threads, dead_difference, describe, line_of
from determinism.comparison.lockstep import LOOKS
from determinism.comparison.partners import ContentGroup, Sides, draw_behind, paired, unmatched
from determinism.comparison.processes import ProcessComparison, VisibleDifferences
from determinism.comparison.records import (
    DigestSearch,
    Entry,
    Pair,
    Received,
    Root,
    entry_of,
    outputs_with,
    received_by,
)
from determinism.trace.chunks import Array, Chunk
from determinism.trace.process import ProcessTrace
from determinism.trace.views import JoinedStreams
from determinism.types import Access, Kind, Level, Stream

# Follows a difference that vanished: what read it before still counts, and so does what was computed from that.

_MOST_VANISHED = 1 << 16


def read_on(process: ProcessTrace, vanished: Mapping[int, Set[int]]) -> set[int]:
    """Return the roots of differences that reached a record that counts, although they no longer showed there.

    `vanished` has the roots of each record that received differences but has equal outputs.
    """
    roots_of = {number: set(roots) for number, roots in vanished.items()}
    wanted = set().union(*roots_of.values())
    reached: set[int] = set()
    for chunk in process.chunks() if wanted else ():
        _pass_on(chunk, roots_of)
        for row in _marked(chunk, roots_of) - vanished.keys():
            roots = roots_of[row]
            if not roots <= reached and entry_of(process, chunk, row - chunk.first).counts:
                reached |= roots
        if reached >= wanted or len(roots_of) > _MOST_VANISHED:
            break
    return reached


def _pass_on(chunk: Chunk, roots_of: dict[int, set[int]]) -> None:
    """Mark the records of a chunk that read from marked ones."""
    inputs = chunk.children["inputs"]
    sources = np.where(inputs.columns["access"] == Access.READ, producers(chunk), -1)
    owners = inputs.spread(chunk.numbers)
    fresh: Array = np.fromiter(roots_of, dtype=np.int64, count=len(roots_of))
    while len(fresh):
        found = set()
        for at in np.flatnonzero(np.isin(sources, fresh)).tolist():
            known = roots_of.setdefault(int(owners[at]), set())
            new = roots_of[int(sources[at])] - known
            if new:
                known |= new
                found.add(int(owners[at]))
        fresh = np.array(sorted(found), dtype=np.int64)


def _marked(chunk: Chunk, roots_of: dict[int, set[int]]) -> set[int]:
    return {number for number in roots_of if 0 <= number - chunk.first < chunk.rows}


# Follows the differences of records that were paired by their content.


class UnorderedFlow(Flow):
    """Follows every difference to its end, because any of them may be what another process received."""

    def __init__(self, first: JoinedStreams, second: JoinedStreams, group: ContentGroup, *, has_sinks: bool) -> None:
        super().__init__(first, second, group.second_keys.key)
        self._first = first
        self._group = group
        self._has_sinks = has_sinks
        self.reached: set[int] = set()
        """Indices of the roots that reached a record that counts."""
        self.used: set[int] = set()
        """Those of them whose value was not only looked at or saved."""
        self._is_look = False

    @property
    def roots(self) -> list[Root]:
        """All roots, in order."""
        return list(self._open.values())

    def follow(self) -> None:
        """Follow the differences of all records, including those that vanish."""
        self.add(self._group)
        if self._has_sinks:
            self.reached |= read_on(self._first, self._vanished())

    def roots_of(self, key: int, output: int) -> list[Root]:
        """Return the roots that an output descends from, in order."""
        return [self._open[index] for index in self._taints.roots_of(key, output)]

    def made_of(self, roots: frozenset[int]) -> dict[int, set[bytes]]:
        """Return per root, by its index, the digests of all values of the first run that descend from it."""
        outputs = self._group.first.children["outputs"]
        rows = dict(zip(self._group.keys.tolist(), self._group.pairing.first.tolist(), strict=True))
        found: dict[int, set[bytes]] = {index: set() for index in roots}
        for (key, output), taints in self._taints.items():
            row = rows.get(key, -1)
            for index in roots.intersection(taint.root for taint in taints) if row >= 0 else ():
                found[index].add(outputs.columns["digest"][int(outputs.starts[row]) + output].tobytes())
        return found

    def _vanished(self) -> dict[int, set[int]]:
        """Return the records of the first run that received a difference but have equal outputs, with the roots."""
        group = self._group
        paired = group.pairing.are_pairs
        made = group.first.children["outputs"].counts
        found = {}
        for at in np.flatnonzero(paired & ~group.flags.outputs).tolist():
            key, outputs = int(group.keys[at]), int(made[group.pairing.first[at]])
            roots = {root for output in range(outputs) for root in self._taints.roots_of(key, output)}
            if roots - self.reached:
                found[key] = roots
        return found

    def _reach_sinks(self, some: Entry, is_extra: bool, roots: set[int]) -> None:
        if self._has_sinks:
            self._is_look = some.role in LOOKS
            super()._reach_sinks(some, is_extra, roots)

    def _settle(self, root: Root) -> None:
        self.reached.add(root.index)
        if not self._is_look:
            self.used.add(root.index)

    def _has_generator(self, group: object, row: int) -> bool:
        # Each stream has its own generator: an extra draw in one explains nothing in the others.
        return False


_MOST_DEAD = 5


class Surroundings(NamedTuple):
    """What is known about the other streams of two runs."""

    received: Set[Pair]
    """Values that other streams received, as digests in both runs: the compared streams may have made them."""
    main: tuple[ProcessTrace, ProcessTrace] | None
    """The main thread of the process, in both runs."""
    search: DigestSearch
    is_cut: Callable[[], bool]
    """Says, once everything was read, whether the recording of a run was cut off: then a record that only one run has
    means nothing."""


def compare_unordered(streams: Streams, around: Surroundings) -> ProcessComparison:
    """Compare streams of two runs as multisets of what their records did.

    Raises:
        TraceError: A trace is damaged.
    """
    first, second = (JoinedStreams(streams.key, side) for side in (streams.first, streams.second))
    result = ProcessComparison(
        streams.key,
        streams.started,
        stream=streams.stream,
        part_of=streams.part_of,
        traces=(first, second),
        has_order=False,
    )
    canonical = Canonical(first, second)
    found = unmatched(first, second, canonical)
    if found is None:
        return result
    is_of_workers = streams.stream is Stream.WORKER
    group = paired(found, (first, second), canonical, across=not is_of_workers, received=around.received)
    flow = UnorderedFlow(first, second, group, has_sinks=not is_of_workers)
    flow.follow()
    ignores_extra = found.is_partial or around.is_cut()
    live = [r for r in flow.roots if r.index in flow.reached and not (ignores_extra and r.is_extra)]
    if streams.stream is Stream.THREADS:
        live = _without_looks(live, flow, around, (first, second))
    indices = {root.index for root in live}
    dead = [r for r in flow.roots if r.index not in indices and not (live and r.index > live[0].index)]
    level = Level(streams.some.description.get("level", Level.OP))
    described = Described((first, second), canonical, level, is_of_workers=is_of_workers)
    result.made = Made(group, flow, described)
    result.is_partial = found.is_partial
    result.dead_differences = len(dead)
    result.dead_first = [dead_difference(described.of(root)) for root in dead[:_MOST_DEAD]]
    # Data that a worker prefetched and nobody used is not a difference, even with --strict.
    counted = [r for r in dead if not (r.is_extra and is_of_workers)]
    result.first_dead = described.of(counted[0]) if counted else None
    if live:
        visible = VisibleDifferences(first, second, has_order=False)
        visible.add(group)
        result.divergence, result.received = described.begun(live[0])
        result.first_visible = visible.earliest()
        result.absorbed = not visible.first and result.divergence.kind is not Kind.STRUCTURE
    return result


def _without_looks(
    live: list[Root], flow: UnorderedFlow, around: Surroundings, own: tuple[ProcessTrace, ProcessTrace]
) -> list[Root]:
    """Drop values that a thread only looked at, at a different moment in each run, such as for time-based logging."""
    looked_at = [root for root in live if root.index not in flow.used]
    made_of = flow.made_of(frozenset(root.index for root in looked_at))
    looks = {root.index: (received_by(root), made_of[root.index]) for root in looked_at}
    for received, made in looks.values():
        around.search.expect({*made, *(digest for pair in received.pairs for digest in pair)})
    threads = Threads([own] if around.main is None else [around.main, own], around.search)
    return [r for r in live if r.index not in looks or not threads.looks_at_another_moment(r, *looks[r.index])]


_MAY_BE_THREADS = (Kind.OP, Kind.DATA, Kind.ORDER, Kind.STRUCTURE)


class Described:
    """Describes roots of joined streams, with the names and numbers of the stream that they come from."""

    def __init__(self, processes: Sides, canonical: Canonical, level: Level, *, is_of_workers: bool) -> None:
        self._processes = processes
        self._canonical = canonical
        self._level = level
        self._is_of_workers = is_of_workers

    def begun(self, root: Root) -> tuple[Divergence, Received]:
        """Return where a root began, possibly in reordered random draws, and what it received."""
        # A worker draws for each item; only threads share a generator.
        same = self._is_of_workers
        draw = draw_behind(root, self._processes, self._canonical, of_same_data=same) if root.aspects.edges else None
        return self.of(draw or root), received_by(draw or root)

    def of(self, root: Root) -> Divergence:
        """Return a root as a divergence."""
        found = describe(root, *self._processes, self._level)
        if found.kind in _MAY_BE_THREADS:
            found = as_changed_by_threads(found, root, self._processes)
        joined = self._processes[found.records_of]
        index, number = joined.place(found.record)
        stream = joined.streams[index]
        threads = stream.description.get("threads") or []
        chunk, row = joined.record(found.record)
        thread = int(chunk.columns["thread"][row])
        return replace(
            found,
            process=reported_process(stream),
            record=number,
            stream=stream.key,
            thread=str(threads[thread - 1]) if 0 < thread <= len(threads) else None,
            site=found.site or line_of(stream, chunk, row),
        )


class Made:
    """The differing values of a group of streams, each of which another stream may have received."""

    def __init__(self, group: ContentGroup, flow: UnorderedFlow, described: Described) -> None:
        self._group = group
        self._flow = flow
        self._described = described

    def origin_of(self, pairs: Set[Pair], first: ProcessTrace) -> tuple[Divergence, Received] | None:
        """Return the origin of the first of these values that was made here, and what it received; None if none was."""
        roots: list[Root] = []
        made = [
            outputs_with({pair[side] for pair in pairs}, [chunk])
            for side, chunk in enumerate((self._group.first, self._group.second))
        ]
        for digests in pairs:
            mine, others = (places.get(digest, ()) for places, digest in zip(made, digests, strict=True))
            if mine and others:
                for key, output in [*mine, *((self._group.second_keys.key(number), at) for number, at in others)]:
                    roots += self._flow.roots_of(key, output)
        if not roots:
            return None
        return self._described.begun(min(roots, key=lambda root: root.index))
