"""A run that was recorded before, as the first one of a check."""

from __future__ import annotations

from pathlib import Path

from determinism.errors import UsageError
from determinism.trace.opening import open_trace
from determinism.trace.reader import Trace
from determinism.trace.schema import MANIFEST_FILE


def open_stored_run(folder: Path, *, level: str, steps: int | None) -> Trace:
    """Open the trace in a folder that `record`, or `check --keep`, wrote.

    Args:
        folder: The trace, or the output folder of a check, whose first run is then used.
        level: At which the new runs will be recorded.
        steps: For how many steps they will be.

    Raises:
        TraceError: There is none.
        UsageError: It was recorded in another way than the new run would be.
    """
    runs = sorted(folder.glob(f"run-*/{MANIFEST_FILE}"))
    trace = open_trace(runs[0].parent if runs else folder)
    levels = {str(process.description["level"]) for process in trace.processes}
    if levels and levels != {level}:
        its_level = min(levels)
        raise UsageError(
            "levels-differ",
            f"{trace.folder} was recorded at level {its_level}, the new run would be at level {level}, so nothing was "
            f"run. Give --level {its_level}.",
        )
    its_steps = trace.manifest.get("steps")
    if its_steps != steps:
        wanted = "Leave --steps out" if its_steps is None else f"Give --steps {its_steps}"
        raise UsageError(
            "steps-differ",
            f"{trace.folder} was recorded {_extent(its_steps)}, the new run would be recorded {_extent(steps)}, so "
            f"nothing was run. {wanted}.",
        )
    return trace


def _extent(steps: int | None) -> str:
    return "to its end" if steps is None else f"for {steps} step{'' if steps == 1 else 's'}"
