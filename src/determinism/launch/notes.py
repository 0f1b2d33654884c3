"""Notes that a process leaves in the trace when it is not recorded.

This file imports nothing of the package and keeps to Python 3.8, so that a process that cannot load the rest can still
say why.
"""

from __future__ import annotations

import os
import sys

RECORDING_VARIABLE = "DETERMINISM_RECORDING"
"""Environment variable with the request to record, as JSON."""

NOTE_PREFIX = "not-recorded-"


def note_not_recorded(reason: str) -> None:
    """Write into the trace that this process is not recorded, and why; the first note of a process stays.

    Args:
        reason: What was found, with values, and what to do.
    """
    try:
        import json

        folder = json.loads(os.environ[RECORDING_VARIABLE])["trace_folder"]
        command = list(getattr(sys, "orig_argv", sys.argv))
        note = {"pid": os.getpid(), "command": command, "executable": sys.executable, "reason": reason}
        with open(os.path.join(folder, f"{NOTE_PREFIX}{os.getpid()}.json"), "x", encoding="utf-8") as file:
            json.dump(note, file, indent=1)
    except Exception:
        # Whatever keeps the note from being written, the program goes on as it would have without us.
        pass
