"""Finds the random draws behind values that changed places: each thread drew, in another order in each run.

All threads draw from one generator. As a multiset their draws are the same in both runs, and only what took them shows
that another thread had drawn before.
"""

from __future__ import annotations

import numpy as np

from determinism.comparison.by_content import paired
from determinism.comparison.canonical import Canonical
from determinism.comparison.origins import Entry, entry
from determinism.comparison.partners import Sides
from determinism.comparison.roots import Aspects, Root
from determinism.comparison.unmatched import Unmatched
from determinism.trace.chunk import Chunk, pick

_MOST_RECORDS = 256


def draw_behind(root: Root, processes: Sides, canonical: Canonical) -> Root | None:
    """The draws of both runs that a record's inputs go back to, if these came from different states of the generator.

    Args:
        root: A record whose inputs were made by other records of its stream.
        processes: The streams of both runs.
        canonical: Numbers for names.
    """
    if root.first is None or root.second is None:
        return None
    waiting = [(root.first, root.second)]
    seen: set[tuple[int, int]] = set()
    while waiting and len(seen) < _MOST_RECORDS:
        for numbers in _makers(*waiting.pop(0)):
            if numbers in seen:
                continue
            seen.add(numbers)
            places = [process.record(number) for process, number in zip(processes, numbers, strict=True)]
            mine, other = (entry(process, *place) for process, place in zip(processes, places, strict=True))
            if mine.op != other.op or mine.outputs == other.outputs:
                continue
            if _state(*places[0]) != _state(*places[1]):
                return _as_root(places, mine, other, processes, canonical)
            waiting.append((mine, other))
    return None


def _makers(mine: Entry, other: Entry) -> list[tuple[int, int]]:
    """The records that made the inputs of both."""
    pairs = zip(mine.inputs, other.inputs, strict=False)
    return [(one.producer, its.producer) for one, its in pairs if one.producer >= 0 and its.producer >= 0]


def _state(chunk: Chunk, row: int) -> list[list[int]]:
    """The states of the generators that a record drew from."""
    generators = chunk.children["generators"]
    found: list[list[int]] = generators.columns["digest"][generators.starts[row] : generators.starts[row + 1]].tolist()
    return found


def _as_root(
    places: list[tuple[Chunk, int]], mine: Entry, other: Entry, processes: Sides, canonical: Canonical
) -> Root | None:
    first, second = (pick(chunk, np.array([row])) for chunk, row in places)
    group = paired(Unmatched(first, second, False), processes, canonical, across=True, received=frozenset())
    if len(group.keys) > 1:
        return None
    flags = group.flags
    aspects = Aspects(
        *(bool(part[0]) for part in (flags.outputs, flags.edges, flags.digests, flags.arguments, flags.generators))
    )
    return Root(0, group, 0, mine, other, aspects, reads_unwritten=False, allocation=None, came_in=False)
