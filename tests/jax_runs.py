"""Records JAX programs in this process, and compares the recordings."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import determinism
from determinism.comparison.records import Entry, entry_of
from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare_runs
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace


class Recorded(NamedTuple):
    """The result of one recording."""

    trace: Trace
    output: str
    """Text that the function printed."""
    result: Any

    @property
    def entries(self) -> list[Entry]:
        """All records of the main process."""
        process = self.trace.processes[0]
        return [entry_of(process, chunk, row) for chunk in process.chunks() for row in range(chunk.rows)]

    @property
    def ops(self) -> list[str]:
        """Names of the ops of all records, in order."""
        return [one.op for one in self.entries]

    @property
    def blind_spots(self) -> list[tuple[str, str]]:
        """Identifiers and subjects of the blind spots."""
        return [(one["id"], one["what"]) for one in self.trace.processes[0].description["blind_spots"]]


def recorded(folder: Path, function: Callable[[], Any]) -> Recorded:
    """Record a function."""
    path = folder / f"trace-{len(list(folder.iterdir()))}"
    output = io.StringIO()
    with contextlib.redirect_stdout(output), determinism.record(path) as session:
        result = function()
        session.returned(result)
    return Recorded(open_trace(path), output.getvalue(), result)


def compared(folder: Path, function: Callable[[], Any]) -> Comparison:
    """Record a function twice, and compare the recordings."""
    return compare_runs([recorded(folder, function).trace for _ in range(2)])
