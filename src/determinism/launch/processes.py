"""The processes of a running program: find those that recording cannot reach, and end all at the user's request."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from determinism.frameworks.registry import is_helper
from determinism.launch.interpreter import BOOTSTRAP_FOLDER, PYTHON_NAME, hiding_options, option_letters
from determinism.redaction import redacted

# Finds, while a program runs, its Python processes that load a framework out of reach of recording.

_LIBRARIES = (b"/libtorch_", b"/libtensorflow_framework.so")
"""Parts of the paths of libraries that frameworks map into the memory of a process."""

_SETTLED_SECONDS = 1.0
"""A younger process may be a fork of its parent that is about to start another program."""


class HiddenProcesses:
    """The processes of a program, inspected repeatedly.

    They are inspected from outside: a process that recording cannot reach cannot say so, and its parent may be a shell.
    Importing a framework takes much longer than the time between two inspections.
    """

    def __init__(self, trace_folder: Path) -> None:
        """Note the processes that are already running; call this before the program starts.

        Args:
            trace_folder: The trace of the program, which is in the environment of every process that inherited it.
        """
        self.found: dict[int, tuple[str, str]] = {}
        """For each process id, the command and the reason why it cannot be recorded."""
        self._trace = os.fsencode(trace_folder)
        self._known = _running()
        self._family: set[int] = set()
        self._unsettled: dict[int, float] = {}
        """For each process that may still turn out to be hidden, since when it has been known."""
        self.waited = 0.0
        """Seconds in which the program was ready to run but had no processor; 0 if the system does not count them."""
        self._waits: dict[int, float] = {}

    def look(self, program: int) -> None:
        """Inspect the running processes, given the process id of the program."""
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
        self._add_waits()

    def _add_waits(self) -> None:
        """Add the longest wait of any process since the last inspection: the others may have waited for that one."""
        waits = {process: _seconds_in_queue(process) for process in self._family}
        grown = [wait - self._waits.get(process, 0.0) for process, wait in waits.items()]
        self.waited += max(0.0, max(grown, default=0.0))
        self._waits = waits

    def _is_settled(self, process: int, age: float) -> bool:
        command = [os.fsdecode(word) for word in _read(process, "cmdline").split(b"\0")[:-1]]
        if _tries_instructions(command) or is_helper(command):
            return True
        if not command or not PYTHON_NAME.fullmatch(_executable(process)):
            return False
        reason = _obstacle(command, _read(process, "environ").split(b"\0"))
        if reason is None:
            return age > _SETTLED_SECONDS
        mapped = _read(process, "maps")
        if not any(library in mapped for library in _LIBRARIES):
            return False
        self.found[process] = (" ".join(redacted(command)), reason)
        return True


def _tries_instructions(command: list[str]) -> bool:
    """Whether this is a process of Inductor that loads a library only to test the instructions of the processor."""
    return command[1:2] == ["-c"] and len(command) > 2 and "cdll.LoadLibrary(" in command[2] and "torch" in command[2]


def _obstacle(command: list[str], environment: list[bytes]) -> str | None:
    """Return why a Python that was started like this cannot be recorded; None if it can."""
    hiding = hiding_options("".join(option_letters(command[1:])))
    if hiding:
        return f"it was started with {' '.join(hiding)}, which hides the recorder from it"
    paths = [value.removeprefix(b"PYTHONPATH=") for value in environment if value.startswith(b"PYTHONPATH=")]
    if any(os.fsencode(BOOTSTRAP_FOLDER) in path.split(os.pathsep.encode()) for path in paths):
        return None
    return "it was started without the PYTHONPATH that leads to the recorder"


def _running() -> set[int]:
    """Return all process ids; none if there is no /proc."""
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}
    except OSError:
        return set()


def _read(process: int, file: str) -> bytes:
    """Return the content of a file of a process; empty if the process has ended or is another user's."""
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:
        return b""


def _executable(process: int) -> str:
    """Return the name of the file that a process executes."""
    try:
        return os.path.basename(os.readlink(f"/proc/{process}/exe"))
    except OSError:
        return ""


def _parent(process: int) -> int:
    # The name in parentheses may itself contain spaces and parentheses.
    words = _read(process, "stat").rpartition(b")")[2].split()
    return int(words[1]) if len(words) > 1 else -1


def _seconds_in_queue(process: int) -> float:
    """Return how long the main thread waited for a processor (Linux: Documentation/scheduler/sched-stats.rst)."""
    words = _read(process, "schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


# Ends the program at the user's request: first politely, then by force.

GRACE_SECONDS = 5.0
_WITNESS_SECONDS = 1.0
"""How long a process may take to end after a signal on a busy machine."""

_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end, instead of ending."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # Ignored signals, as under `nohup`, stay ignored.
    caught = [number for number in _CAUGHT if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class GroupWitness:
    """Distinguishes a signal to the whole process group from one to this process only.

    The system does not distinguish them. But an idle process in the group that nobody else knows of is ended only by a
    signal to the group: Ctrl-C on a terminal, `kill -INT -- -GROUP`, a batch system.
    """

    def __init__(self) -> None:
        """Start the other process."""
        try:
            # It ends at the end of its input, and so also if this process is killed.
            self._other: subprocess.Popen[bytes] | None = subprocess.Popen(
                ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except OSError:
            self._other = None

    def got(self, number: int, process: int) -> bool:
        """Whether a process is in this group and a signal went to the whole group."""
        try:
            is_member = os.getpgid(process) == os.getpgrp()
        except OSError:
            return False
        return is_member and self._other is not None and self._other.poll() == -number

    def end(self) -> None:
        """End the other process."""
        if self._other is not None:
            self._other.kill()
            self._other.communicate()


class Interruption:
    """The signals to send to the program, and when, once the first signal has been received."""

    def __init__(self, process: subprocess.Popen[bytes], witness: GroupWitness) -> None:
        self._process = process
        self._witness = witness
        self._seen = 0
        self._plan: list[tuple[float, int]] = []
        self._since = 0.0
        self._may_have_it = False
        """Whether the first signal is held back because the program may have received it."""

    def advance(self, received: Sequence[int]) -> None:
        """Send the signals that are due; another signal from the user makes the next stage due at once."""
        if not received:
            return
        if self._seen == 0:
            # The program may have received it too; a second one would disrupt its shutdown, such as saving its state.
            self._begin(received[0], _WITNESS_SECONDS)
            self._may_have_it = True
        elif len(received) > self._seen:
            following = [number for _, number in self._plan if number != signal.SIGINT]
            self._plan = [(GRACE_SECONDS if index else 0.0, number) for index, number in enumerate(following)]
            self._may_have_it = False
        self._seen = len(received)
        if self._may_have_it and self._witness.got(received[0], self._process.pid):
            self._plan.pop(0)
            self._may_have_it = False
        self._send_what_is_due()

    def stop(self) -> None:
        """End the program without a signal from the user."""
        if self._seen == 0:
            self._begin(signal.SIGTERM, 0.0)
            self._seen = 1
        self._send_what_is_due()

    def _begin(self, first: int, seconds: float) -> None:
        force = [(GRACE_SECONDS, number) for number in (signal.SIGTERM, signal.SIGKILL) if number != first]
        self._plan = [(seconds, first), *force]
        self._since = time.monotonic()

    def _send_what_is_due(self) -> None:
        if self._plan and time.monotonic() - self._since >= self._plan[0][0]:
            self._may_have_it = False
            send(self._process, self._plan.pop(0)[1])
            self._since = time.monotonic()


def send(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and all its descendants."""
    for child in _descendants(process.pid):
        try:
            os.kill(child, number)
        except OSError:
            continue
    process.send_signal(number)


def _descendants(ancestor: int) -> list[int]:
    """Return the ids of all descendants of a process; none if there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may itself contain spaces and parentheses.
            parent = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
