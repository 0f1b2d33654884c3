"""One difference: where it is, of what kind, and how far the values are apart."""

from __future__ import annotations

from dataclasses import dataclass

from determinism.trace.names import Frame
from determinism.types import Kind

_NO_OPS = frozenset({"determinism", "inductor", "autograd"})
"""Namespaces of records that stand for something else than one op."""


def is_repeatable(op: str) -> bool:
    """Whether a record with this op is one op, which can be run again by itself."""
    return op.partition("::")[0] not in _NO_OPS


@dataclass(frozen=True)
class OutputDifference:
    """One output of the diverging record.

    `elements_different`, `max_ulp`, `max_abs`, `max_relative`, `examples` and `extent` need the values of two executions; without them they
    are None. `repeats` counts executions on equal inputs, `distinct` the different results among them. The other counts are of further
    series of as many repeats, each made only where it can tell causes apart.
    """

    dtype: str
    shape: tuple[int, ...]
    device: str
    elements: int
    elements_different: int | None = None
    max_ulp: int | None = None
    max_abs: float | None = None
    repeats: int | None = None
    distinct: int | None = None
    position: int = 0
    """Which output of the record it is, from 0."""
    distinct_one_thread: int | None = None
    """With one thread."""
    distinct_filled_memory: int | None = None
    """With one thread and with memory that always holds the same bytes when it is handed out."""
    distinct_alignments: int | None = None
    """As the one before, with the inputs at addresses of other alignments in each repeat."""
    examples: tuple[ValueExample, ...] | None = None
    """The first elements that differ."""
    extent: tuple[tuple[int, int], ...] | None = None
    """Per dimension the lowest and the highest index at which elements differ."""
    max_relative: float | None = None
    """The largest difference in value, as a part of the largest element."""
    elements_sampled: int | None = None
    """How many elements the values are of, where not of all; then `elements_different` counts among them."""


@dataclass(frozen=True)
class ValueExample:
    """One element that differs, with both values as texts that tell all values of the type apart."""

    index: tuple[int, ...]
    first: str
    second: str


@dataclass(frozen=True)
class Evidence:
    """What further runs kept of the record at which the runs diverge."""

    source: str
    """`repeats`: the values that `outputs` compares are of repeats in one run; `runs`: of two further runs."""
    folder: str | None
    """Where the tensors are; None if they were not kept."""
    note: str
    """What could not be seen or kept, and why; empty if there is nothing to say."""
    reproducer: str | None = None
    """A script that shows by itself that the op varies."""


@dataclass(frozen=True)
class Divergence:
    """The first record of a process that differs."""

    kind: Kind | None
    """None where the level of recording does not show it."""
    process: str
    record: int
    """Number of the record in the run `records_of`."""
    records_of: int
    """Which run, by position, holds the record; differs from 0 where the first run has no such record."""
    step: int
    phase: str
    op: str
    module: str | None
    site: Frame | None
    forward_site: Frame | None
    stack: tuple[Frame, ...]
    inputs_equal: bool | None
    outputs: tuple[OutputDifference, ...]
    detail: str
    """One or two sentences: what exactly differs, with the values of both runs."""
    stream: str | None = None
    """Key of the stream that holds the record, where its records have no order of their own."""
    thread: str | None = None
    """Name of the thread, where that is not the main thread of the process."""
    received_from: str | None = None
    """Key of the process whose divergence explains this one."""
    allocated_at: Frame | None = None
    """Where the memory was allocated that the op read and nobody had written."""
    shares_memory: bool = False
    """Whether it read memory that several processes write."""
    saved_at: Frame | None = None
    """Where a thread saved what was read back, while others may have changed it."""


@dataclass(frozen=True)
class Visible:
    """The first difference that a person would see."""

    step: int
    what: str
    """For example `loss`, `parameter 0.weight`, `value read by item()`."""
    site: Frame | None = None
    """The line that read or printed it; None for what is kept."""


@dataclass(frozen=True)
class DeadDifference:
    """A difference that nothing read."""

    step: int
    phase: str
    op: str
    site: Frame | None
