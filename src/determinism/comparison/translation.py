"""From the numbers of records in the second run to the keys that both runs share."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from determinism.trace.chunk import Array


class Translation:
    """From record numbers of the second run to keys. A step that is only shifted costs two numbers."""

    def __init__(self, equal_up_to: int) -> None:
        self._equal_up_to = equal_up_to
        self._starts: list[int] = []
        self._keys: list[Array | int] = []

    def add(self, start: int, keys: Array) -> None:
        """Records from `start` on have these keys."""
        if not len(keys):
            return
        shift = int(keys[0]) - start
        is_shifted = bool((keys - np.arange(start, start + len(keys)) == shift).all())
        if is_shifted and self._keys and isinstance(self._keys[-1], int) and self._keys[-1] == shift:
            return
        self._starts.append(start)
        self._keys.append(shift if is_shifted else keys)

    def copy(self) -> Translation:
        """Another one that can be added to on trial."""
        other = Translation(self._equal_up_to)
        other._starts, other._keys = self._starts.copy(), self._keys.copy()
        return other

    def keys(self, numbers: Array) -> Array:
        """Keys of record numbers; -1 stays -1."""
        result = numbers.copy()
        if not self._starts:
            return result
        recent = numbers >= self._starts[-1]
        if isinstance(shift := self._keys[-1], int):
            # Most of what a step reads is new: this spares looking for the block of each.
            result += np.where(recent, shift, 0)
            late = np.flatnonzero((numbers >= self._equal_up_to) & ~recent)
        else:
            late = np.flatnonzero(numbers >= self._equal_up_to)
        block = np.searchsorted(self._starts, numbers[late], side="right") - 1
        for index in np.unique(block):
            members = late[block == index]
            held = self._keys[index]
            own = numbers[members]
            result[members] = own + held if isinstance(held, int) else held[own - self._starts[index]]
        return result

    def key(self, number: int) -> int:
        """Key of one record number."""
        if number < self._equal_up_to or not self._starts:
            return number
        block = bisect_right(self._starts, number) - 1
        held = self._keys[block]
        return number + held if isinstance(held, int) else int(held[number - self._starts[block]])
