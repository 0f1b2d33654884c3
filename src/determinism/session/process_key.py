"""Names the processes of a run, so that the same process has the same name in every run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

from determinism.process_name import own_name
from determinism.trace.schema import PROCESSES_FOLDER

PROCESS_VARIABLE = "DETERMINISM_PROCESS"
"""Environment variable through which a recorded process tells its children its key."""


class Folders:
    """The folders of the processes of one run."""

    _claimed_in: int | None = None
    """The process that a folder was made for last: a second framework in it gets one beside."""

    def __init__(self, trace_folder: Path, framework: str, failed: Callable[[str], None]) -> None:
        """Take the trace, whose ops are recorded, and what is told when a process cannot be recorded."""
        self._trace_folder = trace_folder
        self._framework = framework
        self.failed = failed

    def claim(self, name: str | None) -> Path:
        """Make the folder of this process, and let its children know its key.

        Args:
            name: What the framework calls it among its siblings; None if it knows no name.

        Raises:
            OSError: The folder cannot be made.
        """
        own_key = os.environ.get(PROCESS_VARIABLE)
        if Folders._claimed_in == os.getpid():
            return claim_process_folder(self._trace_folder, own_key, self._framework)
        Folders._claimed_in = os.getpid()
        folder = claim_process_folder(self._trace_folder, own_key, name)
        os.environ[PROCESS_VARIABLE] = folder.name
        return folder


def claim_process_folder(trace_folder: Path, parent_key: str | None, name: str | None = None) -> Path:
    """Make the folder of this process; its name is the process's key.

    Keys are `main`, then `main-2`, `main-3` … for processes that no recorded process started, and `<parent>.<name>` for
    the others. The name is what tells siblings apart in every run: their rank, what `multiprocessing` calls them, or their
    number among those that were forked; only other programs count in the order in which they begin to record.

    Args:
        trace_folder: That of the run.
        parent_key: Key of the recorded process that started this one; None if none did.
        name: What this process is called among its siblings, if the framework knows it better.

    Raises:
        OSError: The folder cannot be made.
    """
    name = name or own_name(parent_key or "")
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
