"""Which records of two streams have no equal in the other one, wherever that may be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from determinism.comparison.canonical import Canonical
from determinism.comparison.fingerprints import stream_fingerprints
from determinism.trace.chunk import Array, Chunk, cut, join, pick
from determinism.trace.joined import JoinedStreams
from determinism.trace.reader import ProcessTrace

_MOST_HELD = 1 << 23
"""Fingerprints that are held at once; of longer streams, one part of all numbers is looked at after the other."""
_MOST_RECORDS = 1 << 16


class Unmatched(NamedTuple):
    """Records that only one run has, of both runs."""

    first: Chunk
    second: Chunk
    is_partial: bool
    """Whether there are more; then the earliest of each stream are here."""


def unmatched(first: JoinedStreams, second: JoinedStreams, canonical: Canonical) -> Unmatched | None:
    """Compare two streams as multisets of what their records did.

    Memory does not grow with the length of the streams; their records are read several times if they differ.

    Returns:
        None if every record has an equal in the other run.
    """
    processes = (first, second)
    totals = [total(process, canonical, side) for side, process in enumerate(processes)]
    if totals[0] == totals[1]:
        return None
    parts = -(-max(rows for rows, _ in totals) // _MOST_HELD)
    numbers: list[list[Array]] = [[], []]
    for part in range(parts):
        held = [_part(process, canonical, side, part, parts) for side, process in enumerate(processes)]
        for side, ((own, prints), (_, others)) in enumerate((held, held[::-1])):
            numbers[side].append(own[_without_equal(prints, others)])
    found = [np.sort(np.concatenate(side)) for side in numbers]
    kept = [_earliest(process, of_side) for process, of_side in zip(processes, found, strict=True)]
    chunks = [_picked(process, of_side) for process, of_side in zip(processes, kept, strict=True)]
    some = chunks[0] or chunks[1]
    if some is None:
        return None
    nothing = cut(some, 0, 0)
    is_partial = any(len(all_found) > len(few) for all_found, few in zip(found, kept, strict=True))
    return Unmatched(chunks[0] or nothing, chunks[1] or nothing, is_partial)


def total(process: ProcessTrace, canonical: Canonical, side: int) -> tuple[int, tuple[int, ...]]:
    """How many records there are, and the sum of their fingerprints, which does not depend on their order."""
    rows, total = 0, np.zeros(2, dtype=np.uint64)
    for _, counted, prints in stream_fingerprints(process, canonical, side):
        rows += len(counted)
        total += prints.sum(axis=0, dtype=np.uint64)
    return rows, tuple(total.tolist())


def _part(process: JoinedStreams, canonical: Canonical, side: int, part: int, parts: int) -> tuple[Array, Array]:
    """Numbers and fingerprints of the records whose fingerprint lies in one part of all numbers."""
    numbers, found = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.uint64)]
    for chunk, counted, prints in stream_fingerprints(process, canonical, side):
        chosen = prints[:, 1] % np.uint64(parts) == part
        numbers.append(chunk.numbers[counted[chosen]])
        found.append(prints[chosen, 0])
    return np.concatenate(numbers), np.concatenate(found)


def _without_equal(prints: Array, others: Array) -> Array:
    """Positions of the fingerprints that the others lack; of several equal ones, the last that are too many."""
    order = np.argsort(prints, kind="stable")
    ordered, others = prints[order], np.sort(others)
    occurrence = np.arange(len(ordered)) - np.searchsorted(ordered, ordered, side="left")
    equal = np.searchsorted(others, ordered, side="right") - np.searchsorted(others, ordered, side="left")
    return np.asarray(order[occurrence >= equal])


def _earliest(process: JoinedStreams, numbers: Array) -> Array:
    """As many records as can be followed: the earliest of each stream, so that what they read from is there too."""
    if len(numbers) <= _MOST_RECORDS:
        return numbers
    stream = process.stream_of(numbers)
    within = np.arange(len(numbers)) - np.searchsorted(stream, stream, side="left")
    return np.asarray(numbers[within < _MOST_RECORDS // len(np.unique(stream))])


def _picked(process: JoinedStreams, numbers: Array) -> Chunk | None:
    """These records; None if there are none."""
    found = []
    for chunk in process.chunks():
        low, high = np.searchsorted(numbers, [chunk.first, chunk.first + chunk.rows])
        if low < high:
            found.append(pick(chunk, numbers[low:high] - chunk.first))
    return join(found) if found else None
