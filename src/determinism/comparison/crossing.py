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
    candidates = np.flatnonzero(crossing & group.flags.outputs & group.flags.edges)
    apart = np.zeros(len(crossing), dtype=bool)
    if not len(candidates):
        return apart
    readers = Readers(group)
    rows = group.pairing.first[candidates]
    roles = group.first.columns["role"][rows]
    for at, role in zip(candidates[::-1].tolist(), roles[::-1].tolist(), strict=True):
        if role in _LOOKS:
            apart[at] = True
            continue
        reading = readers.of(int(group.keys[at]))
        apart[at] = len(reading) > 0 and bool(apart[reading].all())
    return apart
