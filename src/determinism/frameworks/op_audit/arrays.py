"""Arrays made to provoke: the same ones for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOATS = ("float32", "float64", "float16", "bfloat16")
MANY = 1 << 18
"""Contributions; on the CPU frameworks share out work among threads from a size on."""
FEW = 16
"""Places that they go to."""


class Arrays:
    """Makes the arrays of one case, one after another.

    Args:
        seed: Equal seeds make equal arrays.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Values of very different sizes, so that no order of adding them up is like another."""
        return self._generator.normal(size=shape) * np.exp(self._generator.normal(size=shape))

    def near_one(self, *shape: int) -> NDArray[np.float64]:
        """Values whose product neither vanishes nor overflows, however many they are."""
        return np.exp(self._generator.normal(size=shape) * 0.01)

    def unit(self, *shape: int) -> NDArray[np.float64]:
        """Values between 0 and 1."""
        return self._generator.random(size=shape)

    def whole(self, high: int, *shape: int) -> NDArray[np.int32]:
        """Whole numbers below `high`: as indices of many contributions to few places, they collide."""
        return self._generator.integers(high, size=shape, dtype=np.int32)

    def boxes(self, count: int) -> NDArray[np.float64]:
        """Boxes that lie over one another: two corners each, between 0 and 1."""
        return np.tile([[0.1, 0.1, 0.8, 0.8]], (count, 1)) + self.unit(count, 4) * 0.1


def array_bytes(array: Any) -> bytes:
    """The bytes of what converts to an array, in the order of its indices."""
    return np.asarray(array).tobytes()
