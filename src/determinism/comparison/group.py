"""A step's records of both runs, paired: what following differences works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from determinism.comparison.align import Pairing
from determinism.comparison.differences import Flags
from determinism.trace.chunk import Array, Chunk


@dataclass(frozen=True)
class Group:
    """Consecutive records of both runs, paired. All arrays but the chunks have one entry per pair or leftover."""

    first: Chunk
    second: Chunk
    pairing: Pairing
    keys: Array
    """Number by which both runs know the record: that of the first run, or -2 - number in the second."""
    flags: Flags
    """For pairs; False for leftovers."""
    producers_first: Array
    """Per input entry of `first`: key of the producer, -1 for external."""
    producers_second: Array
    layouts_first: Array
    """Per input entry of `first`: canonical number of the view through which it was read."""
    layouts_second: Array
    is_unordered: ClassVar[bool] = False
    """Whether the records have no order of their own."""

    def reads(self, side: int) -> list[tuple[int, int]]:
        """Per input entry of a side: key of the producer, and view."""
        producers, views = (
            (self.producers_first, self.layouts_first) if side == 0 else (self.producers_second, self.layouts_second)
        )
        return list(zip(producers.tolist(), views.tolist(), strict=True))
