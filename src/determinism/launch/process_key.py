"""Names the processes of a run, so that the same process has the same name in every run."""

from __future__ import annotations

import itertools
from pathlib import Path

from determinism.trace.schema import PROCESSES_FOLDER

PROCESS_VARIABLE = "DETERMINISM_PROCESS"
"""Environment variable through which a recorded process tells its children its key."""


def claim_process_folder(trace_folder: Path, parent_key: str | None) -> Path:
    """Make the folder of this process; its name is the process's key.

    Keys are `main`, then `main-2`, `main-3` … for processes that no recorded process started, and `<parent>.1`,
    `<parent>.2` … for the others, in the order in which they begin to record.

    Raises:
        OSError: The folder cannot be made.
    """
    for index in itertools.count(1):
        first_process = "main" if index == 1 else f"main-{index}"
        key = first_process if parent_key is None else f"{parent_key}.{index}"
        folder = trace_folder / PROCESSES_FOLDER / key
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("the count of keys has no end")
