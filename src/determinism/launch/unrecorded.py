"""Says why no process of a run recorded anything."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from determinism.errors import LaunchError
from determinism.launch.notes import NOTE_PREFIX
from determinism.trace.schema import PROCESS_FILE, PROCESSES_FOLDER

_LEAST_ROOM = 1 << 20
"""Bytes that a trace needs to begin."""


def not_recorded_reasons(folder: Path) -> list[str]:
    """The reasons that processes of a run gave for not being recorded, the most frequent first.

    Args:
        folder: The trace.
    """
    reasons: Counter[str] = Counter()
    for path in sorted(folder.glob(f"{NOTE_PREFIX}*.json")):
        try:
            reasons[str(json.loads(path.read_text(encoding="utf-8"))["reason"])] += 1
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return [reason for reason, _ in reasons.most_common()]


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
    ended = f"The program ended with exit status {exit_status}."
    try:
        room = shutil.disk_usage(folder).free
    except OSError:
        room = _LEAST_ROOM
    if room < _LEAST_ROOM:
        raise LaunchError(
            "disk-full",
            f"No process of the program recorded anything: the disk with {folder} has {room:,} bytes left. {ended} Make "
            "room, or give another place with --output.",
        )
    raise LaunchError("nothing-recorded", f"{reason} {ended}")


def unrecorded_reason(folder: Path) -> str | None:
    """Why no process of a run recorded anything, and what to do; None if one did.

    Args:
        folder: The trace.
    """
    if any((folder / PROCESSES_FOLDER).glob(f"*/{PROCESS_FILE}")):
        return None
    reasons = not_recorded_reasons(folder)
    if reasons:
        return "No process of the program recorded anything. " + " ".join(reasons)
    return (
        "No process of the program recorded anything: none that recording could reach imported torch. If the program "
        "uses torch, see that its Python runs without -I, -S and -E, keeps PYTHONPATH, and runs on this machine."
    )
