"""Names the processes of a run, so that the same process has the same name in every run."""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path

from determinism.trace.schema import PROCESSES_FOLDER

PROCESS_VARIABLE = "DETERMINISM_PROCESS"
"""Environment variable through which a recorded process tells its children its key."""


def claim_process_folder(trace_folder: Path, parent_key: str | None) -> Path:
    """Make the folder of this process; its name is the process's key.

    Keys are `main`, then `main-2`, `main-3` … for processes that no recorded process started, and `<parent>.<name>` for
    the others. The name is what tells siblings apart in every run: their rank, or what `multiprocessing` calls them; only
    where there is neither, they count in the order in which they begin to record.

    Raises:
        OSError: The folder cannot be made.
    """
    name = _own_name()
    for index in itertools.count(1):
        if name is not None:
            key = f"{parent_key or 'main'}.{name}" if index == 1 else f"{parent_key or 'main'}.{name}-{index}"
        elif parent_key is None:
            key = "main" if index == 1 else f"main-{index}"
        else:
            key = f"{parent_key}.{index}"
        folder = trace_folder / PROCESSES_FOLDER / key
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("the count of keys has no end")


def _own_name() -> str | None:
    """What this process is called among its siblings; None if it has no name."""
    rank = os.environ.get("RANK", "")
    if rank.isdigit():
        return f"rank-{rank}"
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return None
    name = str(multiprocessing.current_process().name)
    return None if name == "MainProcess" else re.sub(r"[^A-Za-z0-9-]", "-", name)
