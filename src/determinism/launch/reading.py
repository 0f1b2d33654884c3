"""Notes which files a process reads that an earlier run of the same check changed.

Only the runs after the first are told to: an audit hook slows down every call that Python audits. This file imports next
to nothing, because every Python process of the program loads it at its start.
"""

from __future__ import annotations

import os
import sys

from determinism.launch.notes import RECORDING_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

EARLIER_RUNS_VARIABLE = "DETERMINISM_EARLIER_RUNS"
"""Environment variable with the begin and end of each earlier run: nanoseconds since 1970, as `begin:end`, with commas."""

LEFTOVERS_PREFIX = "leftovers-"

_MOST_NOTES = 1000
_OWN_KERNEL = "determinism_digest"
"""Part of the names that Triton gives to what it keeps of the kernel that digests tensors on a GPU."""
_NO_FILES = ("/proc/", "/sys/")
"""Where the system keeps what looks like files."""


def note_leftovers() -> None:
    """Watch the files that this process opens, if the environment names earlier runs."""
    runs = os.environ.get(EARLIER_RUNS_VARIABLE)
    if runs:
        times = [tuple(map(int, run.split(":"))) for run in runs.split(",")]
        sys.addaudithook(Readings(times, os.environ[RECORDING_VARIABLE]).look)


class Readings:
    """What this process, and those it forks, read of earlier runs."""

    def __init__(self, runs: Sequence[tuple[int, ...]], request: str) -> None:
        self._runs = runs
        self._first_begin = min(run[0] for run in runs)
        self._request = request
        self._noted: set[tuple[int, int]] = set()

    def look(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook; it sees a file that is about to be opened before it can be changed."""
        if event != "open" and event != "sqlite3.connect":
            return
        try:
            if event != "open" or _may_read(arguments[2]):
                self._look_at(arguments[0])
        except Exception:
            # The program gets its file, or its own error, whatever became of our look at it.
            return

    def _look_at(self, file: Any) -> None:
        if isinstance(file, int):
            return
        found = os.stat(file)
        # Every change of content moves this time, and no program can set it.
        changed = found.st_ctime_ns
        if changed < self._first_begin or not found.st_size or (found.st_dev, found.st_ino) in self._noted:
            return
        number = next((number for number, (begin, end) in enumerate(self._runs) if begin <= changed <= end), None)
        path = os.path.abspath(os.fsdecode(file))
        if (
            number is None
            or path.endswith(".pyc")
            or path.startswith(_NO_FILES)
            or _OWN_KERNEL in path
            or len(self._noted) >= _MOST_NOTES
        ):
            return
        self._noted.add((found.st_dev, found.st_ino))
        self._note(number, path)

    def _note(self, number: int, path: str) -> None:
        import json

        folder = json.loads(self._request)["trace_folder"]
        if path.startswith(os.path.join(os.path.dirname(folder), "")):
            return
        line = json.dumps({"run": number, "file": path, "site": _site()}) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(os.path.join(folder, f"{LEFTOVERS_PREFIX}{os.getpid()}.jsonl"), flags, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def _site() -> tuple[str, int, str] | None:
    """File, line and function of the program's own code that opens a file; None if it is not that."""
    from determinism.code_owner import Owner, owner_of

    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if owner_of(frame) is Owner.USER:
            return os.path.abspath(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


def _may_read(flags: int) -> bool:
    """Whether a file opened with these flags is there to be read, not only to be written or added to."""
    access = flags & os.O_ACCMODE
    return access == os.O_RDONLY or (access == os.O_RDWR and not flags & (os.O_TRUNC | os.O_APPEND))
