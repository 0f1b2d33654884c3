"""How one process of two runs compares, and in how many records of each step it differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from determinism.comparison.records import NOTHING, Pair, Received, StepCounts
from determinism.comparison.result import Dataflow, DeadDifference, Divergence, Visible
from determinism.trace.reader import ProcessTrace
from determinism.types import Stream


class MadeValues(Protocol):
    """The values of a stream that differ, each of which another stream may have received."""

    def origin_of(self, pairs: Set[Pair]) -> tuple[Divergence, Received] | None:
        """Where the first of these values that was made here began to differ, and what that received; None if none was."""


@dataclass
class ProcessComparison:
    """What comparing one process of two runs came to."""

    key: str
    started: float = 0.0
    """When the process of the first run began to record, in seconds since 1970."""
    divergence: Divergence | None = None
    first_visible: Visible | None = None
    infected: list[Visible] = field(default_factory=list)
    absorbed: bool = False
    dead_differences: int = 0
    dead_first: list[DeadDifference] = field(default_factory=list)
    first_dead: Divergence | None = None
    """As a divergence, for those who count dead differences too."""
    sent: Divergence | None = None
    """The first that other processes got through a collective, whether anything here read it or not."""
    exchanged: Divergence | None = None
    """The divergence as one of the collective that it came through, if this process gave that the same values in both runs."""
    shared: Divergence | None = None
    """The first that began here and was written where other processes may read it, whether anything here read it or not."""
    received: Received = NOTHING
    """What the divergence got from other streams."""
    loaded: frozenset[Pair] = frozenset()
    """What differs of all that was loaded from files before it."""
    stream: Stream = Stream.PROCESS
    part_of: str = ""
    """Key of the process; that of the streams of its threads, pools and workers as well."""
    traces: tuple[ProcessTrace, ProcessTrace] | None = None
    counts: StepCounts | None = None
    """How many records differ in each step; None for streams without an order, and where nothing that counts differs."""
    dataflow: Dataflow | None = None
    """What is around the divergence."""
    has_order: bool = True
    """Whether the records of the stream have an order of their own."""
    made: MadeValues | None = None
    """Which values of a stream without an order differ, live or dead; None if none does."""
    is_partial: bool = False
    """Whether more records of it differ than could be followed, so that finding none that counts says nothing."""


ProcessPair = tuple[ProcessTrace, ProcessTrace]
ComparePairs = Callable[[Sequence[ProcessPair], bool], Sequence[ProcessComparison | None]]
"""Compares pairs of processes; given whether a run was stopped by us. None stands for a pair that must be compared here."""


def compare_none(pairs: Sequence[ProcessPair], is_stopped: bool) -> Sequence[ProcessComparison | None]:
    """Leave every pair to be compared here."""
    return [None] * len(pairs)
