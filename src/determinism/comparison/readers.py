"""Which records of a group read what a record wrote."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from determinism.comparison.group import Group
from determinism.trace.chunk import Array, Chunk


class Readers:
    """An index from producers to the positions of their readers, for one group."""

    def __init__(self, group: Group) -> None:
        owners = [
            _owners(group.first, _positions(group.pairing.first, group.first.rows)),
            _owners(group.second, _positions(group.pairing.second, group.second.rows)),
        ]
        self._keys = np.concatenate([group.producers_first, group.producers_second])
        self._owners = np.concatenate(owners)

    @cached_property
    def _by_key(self) -> tuple[Array, Array]:
        order = np.argsort(self._keys, kind="stable")
        return self._keys[order], self._owners[order]

    def of(self, key: int) -> Array:
        """Positions of the records that read from one producer."""
        keys, owners = self._by_key
        low, high = np.searchsorted(keys, [key, key + 1])
        return owners[low:high]

    def of_any(self, keys: set[int]) -> Array:
        """Positions of the records that read from any of several producers."""
        if not keys or not len(self._keys):
            return np.zeros(0, dtype=np.int64)
        wanted = np.fromiter(keys, dtype=np.int64, count=len(keys))
        return np.unique(self._owners[np.isin(self._keys, wanted)])


def _positions(rows: Array, count: int) -> Array:
    """Per row of a chunk its position in the group."""
    positions = np.zeros(count, dtype=np.int64)
    present = rows >= 0
    positions[rows[present]] = np.flatnonzero(present)
    return positions


def _owners(chunk: Chunk, positions: Array) -> Array:
    return np.repeat(positions, np.diff(chunk.children["inputs"].starts))
