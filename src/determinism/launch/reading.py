"""Note the files that a process writes, and those it reads that an earlier run of the same check has changed.

Only the runs of a check do this, since an audit hook slows down every call that Python audits. This file imports next
to nothing, because every Python process of the program loads it at startup.
"""

from __future__ import annotations

import os
import sys
import time

from determinism.launch.notes import RUN_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

_EARLIER_RUNS_VARIABLE = "DETERMINISM_EARLIER_RUNS"
_FIRST_RUN = "-"
"""The variable and its value in the first run of a check; set by `run_spec.py`, which takes too long to import here."""

WRITE_EVENT = "determinism.write"
"""Audit event, with the path, for a file that is about to be written by code that Python does not audit."""

READ_EVENT = "determinism.read"
"""The same for a file that is about to be read."""

LEFTOVERS_PREFIX = "leftovers-"

_MOST_NOTES = 1000
_OWN_KERNEL = "determinism_digest"
"""Part of the names of Triton's cached files for the kernel that digests tensors on a GPU."""
_OWN_LIBRARY = os.sep + os.path.join("determinism", "native", "torch-")
"""Part of the names of files in the user's cache from building the native recorder."""
_OWN_TRITON = os.sep + os.path.join("determinism", "triton", "")
"""Part of the names of all files that Triton keeps while compiling that kernel; see `device_digests`."""
_NO_FILES = ("/proc/", "/sys/", "/dev/")
"""Folders of files that exist only virtually."""
_OWN_FILES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""The package itself: changing or reinstalling it during a check does not affect the program."""
_EVENTS = frozenset(
    {
        "open",
        "sqlite3.connect",
        "os.rename",
        "os.link",
        "os.symlink",
        "os.remove",
        "os.truncate",
        READ_EVENT,
        WRITE_EVENT,
    }
)


def note_leftovers() -> None:
    """Watch the files that this process opens, if the environment shows that it belongs to a check."""
    runs = os.environ.get(_EARLIER_RUNS_VARIABLE)
    if runs:
        times = [] if runs == _FIRST_RUN else [tuple(map(int, run.split(":"))) for run in runs.split(",")]
        sys.addaudithook(Readings(times, os.environ[RUN_VARIABLE]).look)


class Readings:
    """Files that this process and its forks wrote, and those they read that earlier runs had changed."""

    def __init__(self, runs: Sequence[tuple[int, ...]], spec: str) -> None:
        self._runs = runs
        self._first_begin = min((run[0] for run in runs), default=0)
        self._spec = spec
        self._noted: set[tuple[int, int]] = set()
        self._touched: set[tuple[str, str]] = set()

    def look(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an audit event; a file is examined before it is opened and can be changed."""
        if event not in _EVENTS:
            return
        try:
            if event == "open":
                # For `os.open`, which passes no mode, the folder to which a relative path refers is unknown.
                if _may_write(arguments[2]) and (arguments[1] is not None or os.path.isabs(arguments[0])):
                    self._look_at_change("wrote", arguments[0])
                if _may_read(arguments[2]):
                    self._look_at(arguments[0])
            elif event == "sqlite3.connect":
                # An existing database may be opened only to be read.
                if not os.path.lexists(arguments[0]):
                    self._look_at_change("wrote", arguments[0])
                self._look_at(arguments[0])
            elif event in ("os.rename", "os.link"):
                if arguments[2:] == (-1, -1):
                    self._look_at_change("wrote", arguments[1])
                    if event == "os.rename":
                        self._look_at_change("removed", arguments[0])
            elif event == "os.symlink":
                if arguments[2] == -1:
                    self._look_at_change("removed", arguments[1])
            elif event == "os.remove":
                if arguments[1] == -1:
                    self._look_at_change("removed", arguments[0])
            elif event == READ_EVENT:
                self._look_at(arguments[0])
            else:
                self._look_at_change("wrote", arguments[0])
        except Exception:
            # An error of our own must not keep the program from its file or its own error.
            return

    def _look_at_change(self, how: str, file: Any) -> None:
        """Note that a file is about to be written or removed, and whether it exists."""
        if isinstance(file, int):
            return
        path = os.path.realpath(os.fsdecode(file))
        if (how, path) in self._touched or len(self._touched) >= _MOST_NOTES or _is_left_out(path):
            return
        self._touched.add((how, path))
        self._note({how: path, "existed": os.path.lexists(path), "at": time.time_ns()}, path)

    def _look_at(self, file: Any) -> None:
        if isinstance(file, int):
            return
        found = os.stat(file)
        # Every change of content updates this time, and no program can set it.
        changed = found.st_ctime_ns
        if changed < self._first_begin or not found.st_size or (found.st_dev, found.st_ino) in self._noted:
            return
        number = next((number for number, (begin, end) in enumerate(self._runs) if begin <= changed <= end), None)
        path = os.path.abspath(os.fsdecode(file))
        if number is None or _is_left_out(path) or len(self._noted) >= _MOST_NOTES:
            return
        self._noted.add((found.st_dev, found.st_ino))
        self._note({"run": number, "file": path, "site": _site()}, path)

    def _note(self, note: dict[str, Any], path: str) -> None:
        import json

        folder = json.loads(self._spec)["recording"]["trace_folder"]
        if path.startswith(os.path.join(os.path.dirname(folder), "")):
            return
        line = json.dumps(note) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(os.path.join(folder, f"{LEFTOVERS_PREFIX}{os.getpid()}.jsonl"), flags, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def _site() -> tuple[str, int, str] | None:
    """Return file, line and function of the program's own code that opens a file; None if no such code does."""
    from determinism.source_files import Owner, owner_of

    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if owner_of(frame) is Owner.USER:
            return os.path.abspath(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


def _is_left_out(path: str) -> bool:
    if path.endswith(".pyc") or path.startswith((*_NO_FILES, _OWN_FILES)):
        return True
    return _OWN_KERNEL in path or _OWN_LIBRARY in path or _OWN_TRITON in path


def _may_write(flags: int) -> bool:
    return bool(flags & os.O_ACCMODE != os.O_RDONLY or flags & (os.O_CREAT | os.O_TRUNC))


def _may_read(flags: int) -> bool:
    """Whether a file is opened with these flags to be read, not only to be written or appended to."""
    access = flags & os.O_ACCMODE
    return access == os.O_RDONLY or (access == os.O_RDWR and not flags & (os.O_TRUNC | os.O_APPEND))
