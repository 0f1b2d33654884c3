"""Where differences lie in memory, and who takes them in by reading it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from determinism.comparison.origins import Entry, Input, chooses_elements
from determinism.comparison.regions import come_near, leaves_uncovered, overlap
from determinism.trace.names import Layout
from determinism.types import Access

_MOST_COVERS = 64


Sides = tuple[Entry | None, Entry | None]
"""A record in both runs; None where a run lacks it."""


class Taint(NamedTuple):
    """A difference that lies in part of a storage."""

    layout: Layout | None
    root: int
    """Index of the root; -1 for memory that nobody wrote."""
    covers: tuple[Layout, ...] = ()
    """Parts that were overwritten since."""


PENDING = -1


class Incoming(NamedTuple):
    """What differences a record receives."""

    read: frozenset[int]
    carried: tuple[Taint, ...]


def receives(value: Input, taint: Taint, *, can_tell: bool) -> bool:
    """Whether reading a value takes a difference in.

    A tensor is known to differ as a whole. A record that reads only a part of it, and whose result shows every bit that
    it read, took no difference in if that result is equal.

    Args:
        value: What is read.
        taint: The difference.
        can_tell: Whether the record's result is equal, and shows what it read.
    """
    if not overlap(taint.layout, value.layout, taint.covers):
        return False
    is_part = taint.layout is not None and value.layout is not None and leaves_uncovered(taint.layout, [value.layout])
    return not (can_tell and is_part)


class Taints:
    """Marks what records give with the differences that lie in it."""

    def __init__(self, key_of: Callable[[int], int], holds_equal: Callable[[Sides, int], bool]) -> None:
        """Make an empty one.

        Args:
            key_of: Gives the key that both runs share for a record of the second.
            holds_equal: Whether an input of a record, by its position, is known to hold the same in both runs.
        """
        self._key_of = key_of
        self._holds_equal = holds_equal
        self._marks: dict[tuple[int, int], tuple[Taint, ...]] = {}
        self.producers: set[int] = set()
        """Keys of the records that gave something that is marked."""

    def __contains__(self, made: tuple[int, int]) -> bool:
        """Whether an output, given by the key of its record and its place, is marked."""
        return made in self._marks

    def items(self) -> Iterator[tuple[tuple[int, int], tuple[Taint, ...]]]:
        """Every output that is marked, and with what."""
        yield from self._marks.items()

    def roots_of(self, key: int, output: int) -> list[int]:
        """Indices of the roots that an output descends from, as far as they are still followed."""
        return sorted(taint.root for taint in self._marks.get((key, output), ()) if taint.root != PENDING)

    def keep(self, followed: Container[int]) -> None:
        """Forget the differences of all roots but these."""
        kept = {}
        for made, taints in self._marks.items():
            left = tuple(taint for taint in taints if taint.root in followed)
            if left:
                kept[made] = left
        self._marks = kept
        self.producers = {key for key, _ in kept}

    def incoming(self, sides: Sides, *, is_equal: bool) -> Incoming:
        """What a record of both runs receives; `is_equal` says that it gave the same in both."""
        read: set[int] = set()
        carried: set[Taint] = set()
        for side, one in enumerate(sides):
            for position, value in enumerate(one.inputs if one is not None and not one.only_receives else ()):
                key = value.producer if side == 0 else self._key_of(value.producer)
                taints = self._marks.get((key, value.output), ())
                if not taints or self._holds_equal(sides, position):
                    continue
                for taint in taints:
                    if value.access is Access.CARRY:
                        carried.add(taint)
                    elif receives(value, taint, can_tell=is_equal and one is not None and one.shows_what_it_read):
                        read.add(taint.root)
        return Incoming(frozenset(read), tuple(carried))

    def spread(
        self,
        key: int,
        some: Entry,
        own: set[int],
        incoming: Incoming,
        followed: Container[int],
        equal: Container[int] = (),
        *,
        differs: bool,
    ) -> bool:
        """Mark what a record gives.

        Args:
            key: Of the record.
            some: The record, of either run.
            own: Roots whose difference is in all that it gives, but for what is equal; `PENDING` for memory that nobody wrote.
            incoming: What it received, of which some may lie beside what it wrote.
            followed: The roots that still matter.
            equal: Outputs that have nothing of it.
            differs: Whether it gave something else in the other run.

        Returns:
            Whether anything is marked.
        """
        keeps = differs and chooses_elements(some)
        marked = False
        for output, made in enumerate(some.outputs):
            taints = set() if output in equal else {Taint(made.layout, root) for root in own}
            for taint in incoming.carried:
                if taint.root == PENDING or taint.root in followed:
                    left = _left(taint, made.layout, keeps=keeps)
                    if left is not None:
                        taints.add(left)
            if taints:
                self._marks[(key, output)] = tuple(taints)
                self.producers.add(key)
                marked = True
        return marked


def _left(taint: Taint, written: Layout | None, *, keeps: bool) -> Taint | None:
    """What is left of a difference in a storage after a write into part of it.

    Args:
        taint: The difference.
        written: The part.
        keeps: Whether elements of the part were kept, and the part still differs.
    """
    if written is None or taint.layout is None or keeps or len(taint.covers) >= _MOST_COVERS:
        return taint
    if not come_near(taint.layout, written):
        return taint
    covers = (*taint.covers, written)
    return taint._replace(covers=covers) if leaves_uncovered(taint.layout, list(covers)) else None
