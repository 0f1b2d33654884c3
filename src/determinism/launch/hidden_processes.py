"""Finds, while a program runs, the Python processes of it that load a framework where recording cannot reach them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from determinism.launch.child_environment import BOOTSTRAP_FOLDER
from determinism.launch.interpreter import PYTHON_NAME, hiding_options, option_letters

_LIBRARIES = (b"/libtorch_", b"/libtensorflow_framework.so")
"""Part of the path of a library that a framework maps into the memory of the process."""

_SETTLED_SECONDS = 1.0
"""Before this age a process may be a copy of its parent that is about to start another program."""


class HiddenProcesses:
    """The processes of a program, looked at again and again.

    They are looked at from outside: one that recording cannot reach cannot tell, and what started it may be a shell.
    Importing a framework takes much longer than the time from one look to the next.
    """

    def __init__(self, trace_folder: Path) -> None:
        """Note what runs already, so this comes before the program starts.

        Args:
            trace_folder: Where the program is recorded, which every process that got its environment knows.
        """
        self.found: dict[int, tuple[str, str]] = {}
        """Per process id the command, and why it cannot be recorded."""
        self._trace = os.fsencode(trace_folder)
        self._known = _running()
        self._family: set[int] = set()
        self._unsettled: dict[int, float] = {}
        """Since when each process is known that may still turn out to be hidden."""

    def look(self, program: int) -> None:
        """Look at what runs now, given the process id of the program."""
        running, now = _running(), time.monotonic()
        for process in sorted(running - self._known):
            if process == program or _parent(process) in self._family or self._trace in _read(process, "environ"):
                self._family.add(process)
                self._unsettled[process] = now
        self._known = running
        self._family &= running
        for process, since in list(self._unsettled.items()):
            if process not in running or self._is_settled(process, now - since):
                del self._unsettled[process]

    def _is_settled(self, process: int, age: float) -> bool:
        command = [os.fsdecode(word) for word in _read(process, "cmdline").split(b"\0")[:-1]]
        if _tries_instructions(command):
            return True
        if not command or not PYTHON_NAME.fullmatch(_executable(process)):
            return False
        reason = _obstacle(command, _read(process, "environ").split(b"\0"))
        if reason is None:
            return age > _SETTLED_SECONDS
        mapped = _read(process, "maps")
        if not any(library in mapped for library in _LIBRARIES):
            return False
        self.found[process] = (" ".join(command), reason)
        return True


def _tries_instructions(command: list[str]) -> bool:
    """Whether this is Inductor's own process, which loads a library only to see which instructions the processor has."""
    return command[1:2] == ["-c"] and len(command) > 2 and "cdll.LoadLibrary(" in command[2] and "torch" in command[2]


def _obstacle(command: list[str], environment: list[bytes]) -> str | None:
    """Why a Python that was started like this cannot be recorded; None if it can."""
    hiding = hiding_options("".join(option_letters(command[1:])))
    if hiding:
        return f"it was started with {' '.join(hiding)}, which hides the recorder from it"
    paths = [value.removeprefix(b"PYTHONPATH=") for value in environment if value.startswith(b"PYTHONPATH=")]
    if any(os.fsencode(BOOTSTRAP_FOLDER) in path.split(os.pathsep.encode()) for path in paths):
        return None
    return "it was started without the PYTHONPATH that leads to the recorder"


def _running() -> set[int]:
    """Every process id; none where there is no /proc."""
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}
    except OSError:
        return set()


def _read(process: int, file: str) -> bytes:
    """A file of a process; empty if it has ended, or is another user's."""
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:
        return b""


def _executable(process: int) -> str:
    """The name of the file that a process executes."""
    try:
        return os.path.basename(os.readlink(f"/proc/{process}/exe"))
    except OSError:
        return ""


def _parent(process: int) -> int:
    # The name in parentheses may hold spaces and parentheses itself.
    words = _read(process, "stat").rpartition(b")")[2].split()
    return int(words[1]) if len(words) > 1 else -1
