"""Where differences begin, and how they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from determinism.comparison.group import Group
from determinism.comparison.origins import Entry, Input
from determinism.comparison.regions import leaves_uncovered, overlap
from determinism.trace.names import Layout


class Aspects(NamedTuple):
    """In what a pair of records differs."""

    outputs: bool
    edges: bool
    digests: bool
    arguments: bool
    generators: bool


@dataclass(frozen=True)
class Root:
    """A record that differs, and received no difference."""

    index: int
    """Counts roots in execution order."""
    group: Group = field(repr=False)
    position: int
    """Within the group."""
    first: Entry | None
    second: Entry | None
    aspects: Aspects
    reads_unwritten: bool
    allocation: int | None
    """Record of the first run that allocated the memory which is read unwritten."""
    came_in: bool
    """Whether an input that differs arrived from another process, through a collective or a receive."""

    @property
    def is_extra(self) -> bool:
        """Whether only one of the runs has the record."""
        return self.first is None or self.second is None


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
