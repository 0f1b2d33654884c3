"""Finds pairs that are none: looks at values, such as logging by the clock, at another moment in each run."""

from __future__ import annotations

import numpy as np

from determinism.comparison.group import Group
from determinism.comparison.readers import Readers
from determinism.trace.chunk import Array
from determinism.types import Role

_LOOKS = (Role.ESCAPE, Role.CHECKPOINT)


def looks_elsewhere(group: Group, crossing: Array) -> Array:
    """Pairs that stand in another order, read other records, and whose results only such looks receive.

    The n-th log line of one run is not the n-th of the other if it came at another moment. What is read further on, by
    training say, stays paired: there another order is a difference.
    """
    apart = np.zeros(len(crossing), dtype=bool)
    suspects = _reading_others(group, np.flatnonzero(crossing & group.flags.outputs))
    if not suspects:
        return apart
    readers = Readers(group)
    roles = group.first.columns["role"]
    for at in reversed(suspects):
        if roles[group.pairing.first[at]] in _LOOKS:
            apart[at] = True
            continue
        reading = readers.of(int(group.keys[at]))
        apart[at] = len(reading) > 0 and bool(apart[reading].all())
    return apart


def _reading_others(group: Group, candidates: Array) -> list[int]:
    """The candidates that read other records in each run, or what such a candidate made."""
    starts = group.first.children["inputs"].starts
    suspects: list[int] = []
    keys: set[int] = set()
    for at in candidates.tolist():
        row = int(group.pairing.first[at])
        read = group.producers_first[starts[row] : starts[row + 1]].tolist()
        if group.flags.edges[at] or not keys.isdisjoint(read):
            suspects.append(at)
            keys.add(int(group.keys[at]))
    return suspects
