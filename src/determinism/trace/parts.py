"""A run that was recorded in several parts, such as one on each machine of a cluster, read as one trace.

    RUN/parts/<name>/    a whole trace for each part

Ranks are numbered over all machines, so a process that has a rank keeps its key, and it does not matter which machine
ran it. Any other process is called by its part too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from determinism.errors import TraceError, UsageError
from determinism.trace import schema
from determinism.trace.description import read_manifest
from determinism.trace.reader import ProcessTrace, Trace

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
            f"A part cannot be called {name!r}, so nothing was recorded. Give up to 64 letters, digits, '-' and '_', for "
            "example the number of the machine: --part $SLURM_NODEID.",
        )
    if (run / schema.MANIFEST_FILE).exists():
        raise TraceError(
            "output-exists", f"{run} already holds a run that is no part, so nothing was recorded. Give another folder."
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
            f"The parts of {folder} were recorded for different numbers of steps ({', '.join(texts)}), so they are not of one "
            "run. Record all parts with the same --steps.",
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
