"""Lets the processes that the program starts run one after the other."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_LOOK_EACH = 0.05
_WAITS_AFTER = 2.0
"""Seconds: a process that used no CPU for so long waits for another one, which then must go on."""


def take_turns() -> None:
    """Let whoever starts a process wait until it has ended, or waits itself.

    Workers that serve others (daemonic processes: those of pools and loaders) only wait for tasks; they are let be.
    """
    from multiprocessing.process import BaseProcess

    start = BaseProcess.start

    def start_and_wait(self: BaseProcess) -> None:
        start(self)
        if not self.daemon:
            _wait_for(self)

    BaseProcess.start = start_and_wait  # type: ignore[method-assign]


def _wait_for(process: BaseProcess) -> None:
    used, since = _cpu_time(process.pid), time.monotonic()
    while time.monotonic() - since < _WAITS_AFTER:
        process.join(_LOOK_EACH)
        if not process.is_alive():
            return
        now = _cpu_time(process.pid)
        if now != used:
            used, since = now, time.monotonic()


def _cpu_time(pid: int | None) -> tuple[bytes, ...]:
    """Ticks of the clock that a process has used, in its own code and in the system; nothing if that cannot be told.

    Fields 14 and 15 of `/proc/<pid>/stat` (https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html).
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program stands in parentheses, and may itself hold spaces.
            return tuple(file.read().rpartition(b")")[2].split()[11:13])
    except OSError:
        return ()
