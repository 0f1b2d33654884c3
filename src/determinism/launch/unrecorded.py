"""Says which processes of a run recorded nothing, and why."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from determinism.errors import LaunchError
from determinism.exit_status import exit_phrase
from determinism.launch.notes import NOTE_PREFIX
from determinism.trace.reader import read_manifest
from determinism.trace.schema import MANIFEST_FILE, PROCESS_FILE, PROCESSES_FOLDER

_LONGEST_COMMAND = 50

_NOT_REACHED = (
    "No process of the program recorded anything: no process that the recorder could reach imported torch or "
    "tensorflow, or used jax. If the program uses one of them, check that its Python runs without -I, -S and -E, "
    "keeps PYTHONPATH, and runs on this machine."
)
_LEAST_ROOM = 1 << 20
"""Bytes that a trace needs to begin."""


def not_recorded_reasons(folder: Path) -> list[str]:
    """The reasons that processes of a run gave for not being recorded, the most frequent first.

    Args:
        folder: The trace.
    """
    return [reason for reason, _ in Counter(reason for _, reason in _notes(folder)).most_common()]


def _notes(folder: Path) -> Iterator[tuple[str, str]]:
    """The command of each process that left a note, and its reason."""
    for path in sorted(folder.glob(f"{NOTE_PREFIX}*.json")):
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            yield " ".join(map(str, note["command"])), str(note["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            continue


def unrecorded_processes(folder: Path, hidden: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Processes of a run that used a framework and were not recorded, as blind spots for its manifest.

    Args:
        folder: The trace, with the notes that processes left.
        hidden: Command and reason of each process that was seen from outside only.
    """
    found = Counter((_short(command), reason) for command, reason in [*_notes(folder), *hidden])
    return [blind_spot("unrecorded-process", *process, count) for process, count in sorted(found.items())]


def blind_spot(identifier: str, what: str, reason: str, count: int) -> dict[str, Any]:
    """A blind spot as the manifest has it."""
    return {"id": identifier, "what": what, "reason": reason, "count": count}


def _short(command: str) -> str:
    """The first words of a command, without the folders of what it starts."""
    first, *others = command.split() or [""]
    text = " ".join([first.rpartition("/")[2], *others])
    return text if len(text) <= _LONGEST_COMMAND else f"{text[: _LONGEST_COMMAND - 3]}..."


def require_recorded(folder: Path, exit_status: int) -> None:
    """See that a run recorded something.

    Args:
        folder: The trace.
        exit_status: How the program ended.

    Raises:
        LaunchError: It did not.
    """
    reason = unrecorded_reason(folder)
    if reason is None:
        return
    ended = f"The program ended with {exit_phrase(exit_status)}."
    try:
        room = shutil.disk_usage(folder).free
    except OSError:
        room = _LEAST_ROOM
    if room < _LEAST_ROOM:
        raise LaunchError(
            "disk-full",
            f"No process of the program recorded anything: the disk with {folder} has {room:,} bytes left. {ended} Free up "
            "space, or give another folder with --output.",
        )
    if exit_status and reason == _NOT_REACHED:
        raise LaunchError(
            "nothing-recorded",
            f"{ended} By then, none of its processes had imported torch or tensorflow, or used jax, so nothing was "
            "recorded. Check its output.",
        )
    raise LaunchError("nothing-recorded", f"{reason} {ended}")


def unrecorded_reason(folder: Path) -> str | None:
    """Why no process of a run recorded anything, and what to do; None if one did.

    Args:
        folder: The trace.
    """
    if any((folder / PROCESSES_FOLDER).glob(f"*/{PROCESS_FILE}")):
        return None
    reasons = not_recorded_reasons(folder) or _reasons_of_hidden(folder)
    if reasons:
        return "No process of the program recorded anything. " + " ".join(reasons)
    return _NOT_REACHED


def _reasons_of_hidden(folder: Path) -> list[str]:
    """What was seen from outside of processes that could not leave a note."""
    if not (folder / MANIFEST_FILE).exists():
        return []
    spots = read_manifest(folder).get("blind_spots") or []
    return [f"{spot['what']} imported a framework, but {spot['reason']}." for spot in spots]
