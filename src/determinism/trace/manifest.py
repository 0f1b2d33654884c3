"""The manifest of a trace: what was run, where, and how it ended."""

from __future__ import annotations

import errno
import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from determinism.errors import TraceError
from determinism.trace import schema
from determinism.trace.files import make_private_folder, read_document, write_json

NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or a machine, that has as many files open as it may."""


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
        make_private_folder(folder, exist_ok=True)
        make_private_folder(folder / schema.PROCESSES_FOLDER)
        write_manifest(folder, {"run": os.urandom(8).hex(), "created": time.time(), "complete": False, **facts})
    except OSError as error:
        raise not_begun(folder, error) from None


def not_begun(folder: Path, error: OSError) -> TraceError:
    """Empty the folder of a trace that could not be begun, so that it can be used later.

    Returns:
        What to raise.
    """
    with suppress(OSError):
        (folder / schema.MANIFEST_FILE).unlink(missing_ok=True)
        # `shutil.rmtree` keeps a descriptor per level open, and there may be none.
        for place, _, names in os.walk(folder / schema.PROCESSES_FOLDER, topdown=False):
            for name in names:
                os.unlink(os.path.join(place, name))
            os.rmdir(place)
        (folder / schema.PROCESSES_FOLDER).rmdir()
    if error.errno in NO_MORE_FILES:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return TraceError(
            "too-many-open-files",
            f"This process cannot open more files ({error.strerror}; the limit is {limit}), so nothing was recorded "
            f"in {folder}. Raise the limit with `ulimit -n`, or close files before the recording begins.",
        )
    return TraceError("output-unwritable", f"{folder} cannot be written ({error}). Give another folder with --output.")


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Replace the manifest. That of a complete run lists its processes, so that one that is lost later is missed.

    It keeps the name of the run, which every file of records and names has too: one of another run is noticed.

    Raises:
        OSError: It cannot be written.
    """
    if facts.get("complete"):
        described = (folder / schema.PROCESSES_FOLDER).glob(f"*/{schema.PROCESS_FILE}")
        facts = {**facts, "processes": sorted(path.parent.name for path in described)}
    write_json(folder / schema.MANIFEST_FILE, {"format": schema.FORMAT, "run": run_of(folder), **facts})


def run_of(folder: Path) -> str | None:
    """What the manifest of a trace calls its run; None where there is none."""
    try:
        named = read_document(folder / schema.MANIFEST_FILE).get("run")
    except (OSError, ValueError, AttributeError):
        return None
    return named if isinstance(named, str) else None
