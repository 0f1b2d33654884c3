"""Compares streams whose records have no fixed order: of threads, of pools of processes, of a data loader's workers."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from determinism.comparison.by_content import ContentGroup, paired
from determinism.comparison.canonical import Canonical
from determinism.comparison.digest_search import DigestSearch
from determinism.comparison.divergence import Divergence
from determinism.comparison.draws import draw_behind
from determinism.comparison.partners import Sides
from determinism.comparison.process import ProcessComparison, dead_difference, describe
from determinism.comparison.racing import Threads, as_race, is_changed_by_another_thread
from determinism.comparison.received import Pair, Received, received_by
from determinism.comparison.roots import Root
from determinism.comparison.streams import Streams, reported_process
from determinism.comparison.thread_lines import line_of
from determinism.comparison.unmatched import unmatched
from determinism.comparison.unordered_flow import UnorderedFlow
from determinism.comparison.visible import VisibleDifferences
from determinism.trace.chunk import Chunk
from determinism.trace.joined import JoinedStreams
from determinism.trace.reader import ProcessTrace
from determinism.types import NO_DIGEST, Kind, Level, Stream

_MOST_DEAD = 5


@dataclass
class UnorderedComparison(ProcessComparison):
    """What comparing streams without an order of their own came to."""

    made: Made | None = None
    """Which of their values differ, live or dead; None if none does."""
    is_partial: bool = False
    """Whether more records differ than could be followed, so that finding none that counts says nothing."""


class Surroundings(NamedTuple):
    """What is known of the other streams of two runs."""

    received: Set[Pair]
    """Values that other streams received, with their digests in both runs: these may have made them."""
    main: tuple[ProcessTrace, ProcessTrace] | None
    """The main thread of the process, in both runs."""
    search: DigestSearch
    is_cut: Callable[[], bool]
    """Says, when all was read, whether the recording of a run was cut off: then a record that only one run has says
    nothing."""


def compare_unordered(streams: Streams, around: Surroundings) -> UnorderedComparison:
    """Compare streams of two runs as multisets of what their records did.

    Args:
        streams: Those of both runs that belong together.
        around: What is known of the others.

    Raises:
        TraceError: A trace is damaged.
    """
    first, second = (JoinedStreams(streams.key, side) for side in (streams.first, streams.second))
    result = UnorderedComparison(
        streams.key, streams.started, stream=streams.stream, part_of=streams.part_of, traces=(first, second)
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
    described = Described((first, second), canonical, level)
    result.made = Made(group, flow, described)
    result.is_partial = found.is_partial
    result.dead_differences = len(dead)
    result.dead_first = [dead_difference(described.of(root)) for root in dead[:_MOST_DEAD]]
    # What a worker fetched ahead and nobody took is no difference, however strict one is.
    counted = [r for r in dead if not (r.is_extra and is_of_workers)]
    result.first_dead = described.of(counted[0]) if counted else None
    if live:
        visible = VisibleDifferences(first, second)
        visible.add(group)
        result.divergence, result.received = described.begun(live[0])
        result.first_visible = visible.earliest()
        result.absorbed = not visible.first and result.divergence.kind is not Kind.STRUCTURE
    return result


def _without_looks(
    live: list[Root], flow: UnorderedFlow, around: Surroundings, own: tuple[ProcessTrace, ProcessTrace]
) -> list[Root]:
    """What counts: not a value that a thread only looked at, at another moment in each run, as one that logs by the clock."""
    looks = {root.index: (received_by(root), flow.made_of(root)) for root in live if root.index not in flow.used}
    for received, made in looks.values():
        around.search.expect({*made, *(digest for pair in received.pairs for digest in pair)})
    threads = Threads([own] if around.main is None else [around.main, own], around.search)
    return [r for r in live if r.index not in looks or not threads.looks_at_another_moment(r, *looks[r.index])]


class Described:
    """Puts roots of joined streams into the words and numbers of the stream that they come from."""

    def __init__(self, processes: Sides, canonical: Canonical, level: Level) -> None:
        self._processes = processes
        self._canonical = canonical
        self._level = level

    def begun(self, root: Root) -> tuple[Divergence, Received]:
        """Where a root began, which may be in random draws that took another order, and what it received."""
        draw = draw_behind(root, self._processes, self._canonical) if root.aspects.edges else None
        return self.of(draw or root), received_by(draw or root)

    def of(self, root: Root) -> Divergence:
        """The divergence that a root is."""
        found = describe(root, *self._processes, self._level)
        if found.kind in (Kind.OP, Kind.DATA) and is_changed_by_another_thread(root, self._processes):
            found = as_race(found)
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
    """The values of a group of streams that differ, each of which another stream may have received."""

    def __init__(self, group: ContentGroup, flow: UnorderedFlow, described: Described) -> None:
        self._group = group
        self._flow = flow
        self._described = described

    @cached_property
    def _made(self) -> list[dict[bytes, list[tuple[int, int]]]]:
        return [_made(chunk) for chunk in (self._group.first, self._group.second)]

    def origin_of(self, pairs: Set[Pair]) -> tuple[Divergence, Received] | None:
        """Where the first of these values that was made here began to differ, and what that received; None if none was."""
        roots: list[Root] = []
        for first, second in pairs:
            mine, others = self._made[0].get(first, ()), self._made[1].get(second, ())
            if mine and others:
                for key, output in [*mine, *((self._group.second_keys.key(number), at) for number, at in others)]:
                    roots += self._flow.roots_of(key, output)
        if not roots:
            return None
        return self._described.begun(min(roots, key=lambda root: root.index))


def _made(chunk: Chunk) -> dict[bytes, list[tuple[int, int]]]:
    """For each digest the records, by number, and outputs that have it."""
    outputs = chunk.children["outputs"]
    owner = np.repeat(np.arange(chunk.rows), np.diff(outputs.starts))
    found: dict[bytes, list[tuple[int, int]]] = {}
    for entry, row in enumerate(owner.tolist()):
        digest = outputs.columns["digest"][entry].tobytes()
        if digest != NO_DIGEST:
            found.setdefault(digest, []).append((chunk.number(row), entry - int(outputs.starts[row])))
    return found
