"""Goldens: the digests of each step of a program, small enough to commit, and checks against them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from determinism.golden.ledger import exists_already, ledger_of, read_golden, text_of, write_golden
from determinism.golden.result import GoldenComparison, GoldenDifference, compare_ledgers
from determinism.trace.opening import open_trace

__all__ = ["GoldenComparison", "GoldenDifference", "compare", "create"]


def create(trace: str | os.PathLike[str], path: str | os.PathLike[str], *, update: bool = False) -> None:
    """Write the golden of a recorded run.

    Args:
        trace: A folder that was recorded at level `step`.
        path: The file to write.
        update: Replace an existing file.

    Raises:
        UsageError: The file exists, the trace has another level, or it has no step.
        TraceError: The trace cannot be read.

    Example:
        >>> import torch
        >>> from determinism import golden
        >>> with determinism.record("run", level="step"):
        ...     determinism.step()
        >>> golden.create("run", "train.golden")
        >>> golden.compare("run", "train.golden").verdict.value
        'same'
    """
    path = Path(path)
    if path.exists() and not update:
        raise exists_already(path)
    write_golden(path, text_of(ledger_of(open_trace(Path(trace)))), update=update)


def compare(trace: str | os.PathLike[str], path: str | os.PathLike[str]) -> GoldenComparison:
    """Compare a recorded run with a golden.

    Args:
        trace: A folder that was recorded at level `step`.
        path: The golden.

    Raises:
        UsageError: The trace has another level, or it has no step.
        TraceError: The trace or the golden cannot be read.

    Returns:
        The comparison; `raise_if_different` turns it into an error.
    """
    golden = read_golden(Path(path))
    # Only the command notes where the program comes from.
    return replace(compare_ledgers(golden, ledger_of(open_trace(Path(trace)))), commits=("-", "-"))
