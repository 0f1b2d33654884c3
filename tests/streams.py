"""Runs with several streams, for tests: threads, workers, pools and ranks in addition to the main process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from determinism.comparison.divergence import Divergence
from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare
from determinism.types import Verdict
from tests.traces import TraceBuilder

Writer = Callable[[TraceBuilder, int], None]


def compared(folder: Path, write: Writer, **options: bool) -> Comparison:
    """Compare two runs, each written by one call with the number of the run."""
    folders = []
    for run in range(2):
        builder = TraceBuilder(folder / str(run))
        write(builder, run)
        folders.append(builder.close())
    return compare(*folders, **options)


def threads(builder: TraceBuilder, *names: str) -> TraceBuilder:
    own = builder.beside("main.threads", stream="threads", part_of="main", threads=list(names or ("loader",)))
    own.thread = 1
    return own


def worker(builder: TraceBuilder, number: int = 0) -> TraceBuilder:
    return builder.beside(f"main.worker-{number}", stream="worker", part_of="main")


def pool(builder: TraceBuilder, number: int = 0) -> TraceBuilder:
    return builder.beside(f"main.pool-{number}", stream="pool", part_of="main")


def first_of(comparison: Comparison) -> Divergence:
    assert comparison.verdict is Verdict.DIFFERENT and comparison.first_divergence is not None
    return comparison.first_divergence
