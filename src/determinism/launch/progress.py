"""How far a running program is, from the traces that it is writing."""

from __future__ import annotations

from pathlib import Path

from determinism.trace.schema import PROCESSES_FOLDER, SPOOL_FILE
from determinism.trace.spool_file import read_progress


class Progress:
    """Records and last step over all processes of a run; a process that ended counts with what was last seen."""

    def __init__(self, trace_folder: Path) -> None:
        self._folder = trace_folder / PROCESSES_FOLDER
        self._seen: dict[Path, tuple[int, int]] = {}

    def read(self) -> tuple[int, int]:
        """The number of records so far, and the last step or -1."""
        for spool in self._folder.glob(f"*/{SPOOL_FILE}"):
            progress = read_progress(spool)
            if progress is not None:
                self._seen[spool] = progress
        steps = [step for _, step in self._seen.values()]
        return sum(records for records, _ in self._seen.values()), max(steps, default=-1)
