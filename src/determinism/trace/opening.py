"""Opens a trace, whether one command recorded it or several did in parts, and live ones."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from determinism.errors import TraceError, UsageError
from determinism.trace import schema
from determinism.trace.files import make_private_folder, private
from determinism.trace.reader import ProcessTrace, Trace, read_manifest
from determinism.trace.spool import steady_bytes

# Copies what a process has recorded so far, while it goes on, into a folder that can be read like any other trace.


def snapshot_live_trace(folder: Path, picture: Path) -> bool:
    """Make a folder that holds what a process has recorded until now.

    The stream of records only grows, so it is linked; the rest is copied in the order in which nothing can be missed.
    Each look at the picture gives at least the records that the first one gave.

    Args:
        folder: Of the process.
        picture: The folder to be made; what lies there is replaced.

    Returns:
        Whether there was anything to take: the process may not have begun yet.

    Raises:
        OSError: The picture cannot be written.
    """
    if not (folder / schema.PROCESS_FILE).exists():
        return False
    shutil.rmtree(picture, ignore_errors=True)
    make_private_folder(picture)
    try:
        _link(folder / schema.RECORDS_FILE, picture / schema.RECORDS_FILE)
    except FileNotFoundError:
        return False
    spool = steady_bytes(folder / schema.SPOOL_FILE)
    if spool is not None:
        with open(picture / schema.SPOOL_FILE, "wb", opener=private) as file:
            file.write(spool)
    # Names move from the pending ones into the stream, so those that move in between are in the stream.
    for name in (schema.PENDING_NAMES_FILE, schema.NAMES_FILE, schema.PROCESS_FILE):
        try:
            _copy(folder / name, picture / name)
        except FileNotFoundError:
            # It is removed when the process ends.
            continue
    return True


def _link(file: Path, link: Path) -> None:
    """Give a file another name; what a reader of traces opens is never a symbolic link."""
    try:
        os.link(file, link)
    except OSError:
        # Another file system, or one without hard links.
        _copy(file, link)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as original, open(target, "wb", opener=private) as copy:
        shutil.copyfileobj(original, copy)


# A run that was recorded in several parts, such as one on each machine of a cluster, read as one trace.
#
# RUN/parts/<name>/ a whole trace for each part
#
# Ranks are numbered over all machines, so a process that has a rank keeps its key, and it does not matter which
# machine ran it. Any other process is called by its part too.

PARTS_FOLDER = "parts"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_RANK = re.compile(r"[^.]+\.(rank|task)-\d+(\..+)?")


def part_folder(run: Path, name: str) -> Path:
    """Where the trace of a part belongs.

    Args:
        run: The folder of the whole run.
        name: What the part is called.

    Raises:
        UsageError: A part cannot be called so.
        TraceError: The run was recorded as a whole.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            "part-name",
            f"{name!r} is not a valid name for a part, so nothing was recorded. Give up to 64 letters, digits, '-' "
            "and '_', for example the number of the machine: --part $SLURM_NODEID.",
        )
    if (run / schema.MANIFEST_FILE).exists():
        raise TraceError(
            "output-exists",
            f"{run} already holds a run that was recorded without --part, so nothing was recorded. Give another folder.",
        )
    return run / PARTS_FOLDER / name


def part_names(folder: Path) -> list[str]:
    """The names of the parts of a run; none if it is whole."""
    parts = folder / PARTS_FOLDER
    names = [path.parent.name for path in parts.glob(f"*/{schema.MANIFEST_FILE}")]
    return sorted(names, key=lambda name: (len(name), name) if name.isdecimal() else (0, name))


class TraceInParts(Trace):
    """What the parts of one run recorded."""

    def __init__(self, folder: Path, parts: Sequence[Trace]) -> None:
        """Take the parts, of which there is at least one.

        Raises:
            TraceError: They were not recorded for the same number of steps.
        """
        super().__init__(folder, _manifest_of_all(folder, parts))
        self.parts = parts

    @cached_property
    def processes(self) -> list[ProcessTrace]:
        """The processes of all parts, by key."""
        counts = Counter(process.key for part in self.parts for process in part.processes)
        found = []
        for part in self.parts:
            renamed = {
                process.key: process.key
                if _RANK.fullmatch(process.key) and counts[process.key] == 1
                else f"{part.folder.name}/{process.key}"
                for process in part.processes
            }
            for process in part.processes:
                process.key = renamed[process.key]
                part_of = process.description.get("part_of")
                if part_of is not None:
                    process.description["part_of"] = renamed.get(part_of, part_of)
            found += part.processes
        return sorted(found, key=lambda process: process.key)

    @cached_property
    def missing_processes(self) -> list[str]:
        """Processes that the manifest of a part lists and that the part no longer holds."""
        return [f"{part.folder.name}/{key}" for part in self.parts for key in part.missing_processes]


def open_parts(folder: Path) -> TraceInParts:
    """Open a run that was recorded in parts.

    Raises:
        TraceError: A part is not ours, is damaged, or was written by a newer version, or the parts do not go together.
    """
    places = [folder / PARTS_FOLDER / name for name in part_names(folder)]
    return TraceInParts(folder, [Trace(place, read_manifest(place)) for place in places])


def _manifest_of_all(folder: Path, parts: Sequence[Trace]) -> dict[str, Any]:
    """What can be said of all parts: it ended well if each did, and took as long as the slowest."""
    manifests = [part.manifest for part in parts]
    asked = {manifest.get("steps") for manifest in manifests}
    if len(asked) > 1:
        texts = ["all steps" if steps is None else f"--steps {steps}" for steps in sorted(asked, key=lambda s: s or 0)]
        raise TraceError(
            "steps-differ",
            f"The parts of {folder} were recorded for different numbers of steps ({', '.join(texts)}), so they do not "
            "belong to one run. Record all parts with the same --steps.",
        )
    statuses = [manifest.get("exit_status") for manifest in manifests]
    return {
        "command": manifests[0].get("command", []),
        "steps": asked.pop(),
        "complete": all(manifest.get("complete") for manifest in manifests),
        "exit_status": None if None in statuses else next((status for status in statuses if status), 0),
        "stopped_by": next((by for manifest in manifests if (by := manifest.get("stopped_by"))), None),
        "seconds": max(float(manifest.get("seconds") or 0.0) for manifest in manifests),
        "blind_spots": [spot for manifest in manifests for spot in manifest.get("blind_spots") or []],
    }


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
            f"{folder} has no {schema.MANIFEST_FILE}, so it is not a trace.{_traces_below(folder)}",
        )
    return Trace(folder, read_manifest(folder))


def _traces_below(folder: Path) -> str:
    below = sorted(str(path.parent) for path in folder.glob(f"*/{schema.MANIFEST_FILE}"))
    if below:
        return f" It contains traces, though: give {' or '.join(below[:2])}."
    return " Give the folder that `determinism record -o` wrote."
