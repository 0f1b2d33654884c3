"""Ends the program when the user wants it to end: politely first, then by force."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

GRACE_SECONDS = 5.0
_FORWARDING_SECONDS = 0.25
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

    # What is ignored, as under `nohup`, stays ignored.
    caught = [number for number in _CAUGHT if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interruption:
    """What to send to the program, and when, once the first signal came in."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._seen = 0
        self._plan: list[tuple[float, int]] = []
        self._since = 0.0

    def advance(self, received: list[int]) -> None:
        """Send what is due; a further signal from the user makes the next stage due at once."""
        if not received:
            return
        if self._seen == 0:
            self._plan = _plan(received[0])
            self._since = time.monotonic()
        elif len(received) > self._seen:
            following = [number for _, number in self._plan if number != signal.SIGINT]
            self._plan = [(GRACE_SECONDS if index else 0.0, number) for index, number in enumerate(following)]
        self._seen = len(received)
        if self._plan and time.monotonic() - self._since >= self._plan[0][0]:
            send(self._process, self._plan.pop(0)[1])
            self._since = time.monotonic()


def _plan(first: int) -> list[tuple[float, int]]:
    """Seconds to wait before each signal."""
    force: list[tuple[float, int]] = [(GRACE_SECONDS, signal.SIGTERM), (GRACE_SECONDS, signal.SIGKILL)]
    if first == signal.SIGINT:
        # The terminal sends it to the whole group. Elsewhere, who sent it may have sent it to the program as well, and
        # twice would break the program's own ending; so it gets a moment to show that.
        return force if _in_foreground() else [(_FORWARDING_SECONDS, signal.SIGINT), *force]
    return [(0.0, first), *(entry for entry in force if entry[1] != first)]


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def send(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and to all that it started."""
    for child in _descendants(process.pid):
        try:
            os.kill(child, number)
        except OSError:
            continue
    process.send_signal(number)


def _descendants(ancestor: int) -> list[int]:
    """Process ids below a process; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold spaces and parentheses itself.
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
