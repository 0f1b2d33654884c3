"""Gives the same bytes in each run wherever Python code asks the system for random ones."""

from __future__ import annotations

import hashlib
import os
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def start() -> None:
    """Replace `os.urandom`, on which `uuid4`, `secrets` and `SystemRandom` build, and what seeds `random.Random()`."""
    import random

    os.urandom = source = _Source()
    # These hold it under names of their own.
    random._urandom = source  # type: ignore[attr-defined]
    seed = random.Random.seed

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed(self, int.from_bytes(source(32), "big") if a is None else a, version)

    random.Random.seed = seeded  # type: ignore[method-assign]
    random.seed = random._inst.seed


def fix_numpy(numpy: ModuleType) -> None:
    """Give generators that NumPy seeds by itself the same seeds in each run.

    Args:
        numpy: The module.
    """
    module = numpy.random.bit_generator

    def randbits(bits: int) -> int:
        return int.from_bytes(os.urandom((bits + 7) // 8), "big") >> (-bits % 8)

    module.randbits = randbits


class _Source:
    """A stream of bytes that is the same in each run, for each thread that asks."""

    def __init__(self) -> None:
        self._counters = threading.local()

    def __call__(self, size: int) -> bytes:
        made = b""
        while len(made) < size:
            count = getattr(self._counters, "count", 0)
            self._counters.count = count + 1
            made += hashlib.sha256(count.to_bytes(8, "little")).digest()
        return made[:size]
