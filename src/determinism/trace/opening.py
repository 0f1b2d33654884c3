"""Opens a trace, whether one command recorded it or several did in parts."""

from __future__ import annotations

from pathlib import Path

from determinism.errors import TraceError
from determinism.trace import schema
from determinism.trace.description import read_manifest
from determinism.trace.parts import open_parts, part_names
from determinism.trace.reader import Trace


def open_trace(folder: Path) -> Trace:
    """Open a trace.

    Raises:
        TraceError: There is none, it is not ours, it is damaged, it was written by a newer version, or its parts do not go
            together.
    """
    if not folder.is_dir():
        found = "is a file, not a folder" if folder.exists() else "does not exist"
        raise TraceError("trace-missing", f"{folder} {found}. Give the folder that `determinism record -o` wrote.")
    if part_names(folder):
        return open_parts(folder)
    if not (folder / schema.MANIFEST_FILE).exists():
        raise TraceError(
            "trace-foreign",
            f"{folder} holds no {schema.MANIFEST_FILE}, so it is not a trace.{_traces_below(folder)}",
        )
    return Trace(folder, read_manifest(folder))


def _traces_below(folder: Path) -> str:
    below = sorted(str(path.parent) for path in folder.glob(f"*/{schema.MANIFEST_FILE}"))
    if below:
        return f" It holds traces, though: give {' or '.join(below[:2])}."
    return " Give the folder that `determinism record -o` wrote."
