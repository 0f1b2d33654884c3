"""The manifest of a trace: what was run, where, and how it ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from determinism.errors import TraceError
from determinism.trace import schema
from determinism.trace.files import write_json


def create_trace(folder: Path, **facts: Any) -> None:
    """Make a new trace folder with its manifest.

    Raises:
        TraceError: Something is already there, or the folder cannot be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TraceError(
            "output-exists", f"{folder} already exists and is not empty, so nothing was recorded. Give another folder."
        )
    try:
        (folder / schema.PROCESSES_FOLDER).mkdir(parents=True)
        write_manifest(folder, {"created": time.time(), "complete": False, **facts})
    except OSError as error:
        raise TraceError(
            "output-unwritable", f"{folder} cannot be written ({error}). Give another folder with --output."
        ) from None


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Replace the manifest. That of a complete run lists its processes, so that one that is lost later is missed.

    Raises:
        OSError: It cannot be written.
    """
    if facts.get("complete"):
        described = (folder / schema.PROCESSES_FOLDER).glob(f"*/{schema.PROCESS_FILE}")
        facts = {**facts, "processes": sorted(path.parent.name for path in described)}
    write_json(folder / schema.MANIFEST_FILE, {"format": schema.FORMAT, **facts})
