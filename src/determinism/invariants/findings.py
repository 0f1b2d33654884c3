"""What is found by checking a run by itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from determinism.comparison.result import Recorded, RunSummary
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.schema import Frame
from determinism.types import Stream

REPLICAS = "replicas"
SPLIT_BATCHES = "split-batches"
SHARED_BATCHES = "shared-batches"
RECOMPUTATION = "recomputation"
GRAD_MODE = "grad-mode"
SHARDS = "shards"
FILES = "files"

COMPARED = {
    REPLICAS: ("parameter", "equal on their ranks"),
    SHARED_BATCHES: ("shared batch", "equal on their ranks"),
    RECOMPUTATION: ("recomputation", "equal to the first forward pass"),
    GRAD_MODE: ("call", "equal with grad and under no_grad"),
    SHARDS: ("gathered parameter", "equal to the shards"),
    FILES: ("loaded file", "equal to what was saved"),
}
"""Per invariant: what is counted, and how that is told."""

_RANK = re.compile(r"(?:.*\.)?rank-(\d+)")


@dataclass(frozen=True)
class Violation:
    """Something that must agree within a run, and does not."""

    invariant: str
    step: int
    ranks: tuple[int, ...]
    """That differ from the others, or all ranks concerned if none can be told from the others; none if the program has no ranks."""
    others: tuple[int, ...]
    """That they were compared with."""
    what: str
    names: tuple[str, ...] = ()
    """Of all tensors that differ in this step."""
    op: str | None = None
    site: Frame | None = None
    """Line of the first op that only the differing side ran, or whose result differs there."""
    asked_at: Frame | None = None
    """Line that asked for the whole computation, such as the call of `checkpoint`."""
    process: str | None = None
    """Key of the process, where the violation is within one."""


@dataclass
class InvariantFindings:
    """What was compared within a run, and what did not agree."""

    violations: list[Violation] = field(default_factory=list)
    ranks: int = 0
    steps: int = 0
    """That all ranks made."""
    compared: Counter[str] = field(default_factory=Counter)
    """How many of them were compared, by invariant."""
    incomplete: list[str] = field(default_factory=list)
    """Processes of which records are missing."""
    run: RunSummary | None = None
    recorded: Recorded = field(default_factory=Recorded)
    trace: str | None = None
    """Where the run is kept, if it is."""


def ranks_of(trace: Trace) -> dict[int, ProcessTrace]:
    """The main streams of the processes that are ranks, by rank."""
    found = {}
    for process in main_streams(trace):
        rank = rank_of(process)
        if rank is not None:
            found[rank] = process
    return dict(sorted(found.items()))


def rank_of(process: ProcessTrace) -> int | None:
    """The rank of a process; None if it is none."""
    matched = _RANK.fullmatch(process.key)
    return None if matched is None else int(matched[1])


def main_streams(trace: Trace) -> Iterator[ProcessTrace]:
    """The streams that have an order of their own."""
    for process in trace.processes:
        if process.description.get("stream", Stream.PROCESS) == Stream.PROCESS:
            yield process
