"""What a process says about itself: `process.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from determinism.trace.files import write_json
from determinism.trace.schema import FORMAT, PROCESS_FILE


class ProcessFile:
    """The description of a process while it is being recorded; written again whenever it changes."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self._path = folder / PROCESS_FILE
        self.facts = facts
        self._blind_spots: dict[tuple[str, str, str], int] = {}

    def count_blind_spot(self, identifier: str, what: str, reason: str) -> bool:
        """Count something that was not recorded; returns whether it is the first of its sort."""
        key = (identifier, what, reason)
        self._blind_spots[key] = self._blind_spots.get(key, 0) + 1
        return self._blind_spots[key] == 1

    def write(self, *, ended: bool, stopped_by: str | None) -> None:
        """Replace the file.

        Raises:
            OSError: It cannot be written; what stood there before is unharmed.
        """
        spots = [
            {"id": identifier, "what": what, "reason": reason, "count": count}
            for (identifier, what, reason), count in self._blind_spots.items()
        ]
        state = {"ended": ended, "stopped_by": stopped_by, "blind_spots": spots}
        write_json(self._path, {"format": FORMAT, "pid": os.getpid(), **self.facts, **state})
