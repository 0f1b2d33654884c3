"""Clocks, timers, times of files. A fixed clock begins at a fixed time and advances by 10 ms with each reading.

A clock that is shifted at a line is ahead there, by a random time that differs with each reading and each run, from a
millisecond to some days. This shows whether that line matters at all, be it through seconds or through dates.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from typing import Any

from determinism.probes.runtime import Function, SourceFunction, Use, functions, replacing

CLOCK = "clock"
SHIFTED = "shifted clock"

_BEGIN_NS = 1_600_000_000 * 10**9
_STEP_NS = 10**7
_ticks = itertools.count(1)
_SHORTEST_EXPONENT, _LONGEST_EXPONENT = 6.0, 15.0
_shifts = random.Random(f"{os.getpid()} {time.time_ns()}")
"""Must differ from run to run, even where random bytes are fixed."""


def _now_ns(use: Use) -> int:
    now = _BEGIN_NS + next(_ticks) * _STEP_NS
    is_shifted = use.of(SHIFTED).is_fixed
    return now + int(10 ** _shifts.uniform(_SHORTEST_EXPONENT, _LONGEST_EXPONENT)) if is_shifted else now


def _noted(use: Use, value: Any) -> Any:
    use.note(lambda: repr(value))
    return value


def _seconds(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return _noted(use, _now_ns(use) / 1e9 if use.is_fixed else function(*arguments, **keywords))


def _nanoseconds(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return _noted(use, _now_ns(use) if use.is_fixed else function(*arguments, **keywords))


def _broken_down(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`localtime`, `gmtime` and `ctime` take seconds; without an argument they read the clock."""
    if keywords or any(argument is not None for argument in arguments):
        return function(*arguments, **keywords)
    return _noted(use, function(_now_ns(use) / 1e9) if use.is_fixed else function())


def _formatted(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`strftime` reads the clock if it gets only a format; `asctime` if it gets nothing."""
    wanted = 1 if function is time.strftime else 0
    if keywords or len(arguments) != wanted:
        return function(*arguments, **keywords)
    return _noted(
        use, function(*arguments, time.localtime(_now_ns(use) / 1e9)) if use.is_fixed else function(*arguments)
    )


def _moment(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not use.is_fixed:
        return _noted(use, function(*arguments, **keywords))
    owner: Any = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    seconds = _now_ns(use) / 1e9
    if name == "utcnow":
        return _noted(use, owner.utcfromtimestamp(seconds))
    return _noted(use, owner.fromtimestamp(seconds, *arguments, **keywords))


CLOCK_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(CLOCK, _seconds, "time", "time monotonic perf_counter process_time thread_time"),
    *functions(CLOCK, _nanoseconds, "time", "time_ns monotonic_ns perf_counter_ns process_time_ns thread_time_ns"),
    *functions(CLOCK, _broken_down, "time", "localtime gmtime ctime"),
    *functions(CLOCK, _formatted, "time", "strftime asctime"),
    *functions(CLOCK, _moment, "datetime", "datetime.now datetime.utcnow datetime.today date.today"),
)


# When files were written and read. Fixed, all these times are the same.

FILE_TIMES = "file-time"

_SECONDS = 1_600_000_000
_FIRST_TIME = 7
"""The index of the first time in the sequence of a status."""


def _at_one_moment(status: Any) -> Any:
    kind, (sequence, named) = status.__reduce__()
    times = {name: _SECONDS * 10**9 if name.endswith("_ns") else float(_SECONDS) for name in named if "time" in name}
    return kind((*sequence[:_FIRST_TIME], *[_SECONDS] * 3, *sequence[_FIRST_TIME + 3 :]), {**named, **times})


_file_moment = replacing(lambda _: float(_SECONDS))
# Not the time of the last access: every reader changes it, and hardly anybody uses it.
_status = replacing(_at_one_moment, lambda found: f"{found.st_mtime_ns} {found.st_ctime_ns}")

FILE_TIME_FUNCTIONS: tuple[SourceFunction, ...] = (
    # `os.path` imports them from there, on every system.
    *functions(FILE_TIMES, _file_moment, "genericpath", "getmtime getctime getatime"),
    *functions(FILE_TIMES, _status, "os", "stat lstat fstat"),
    *functions(FILE_TIMES, _status, "pathlib", "Path.stat Path.lstat"),
)


# Timers that fire while the program does something else. Fixed, they fire at once, before the program continues.
#
# A timer is noted when it fires, so that a watchdog that never does is not a source.

TIMERS = "timer"

_SECONDS_TO_WAIT = 5.0
"""How long to wait for the timer's action, which takes longer only if it waits for a lock that the program holds."""
_HANDLER = "__determinism_handler__"
_SIGNALS = {
    getattr(signal, timer): getattr(signal, name)
    for timer, name in (("ITIMER_REAL", "SIGALRM"), ("ITIMER_VIRTUAL", "SIGVTALRM"), ("ITIMER_PROF", "SIGPROF"))
    if hasattr(signal, timer)
}


class _AtOnce(threading.Timer):
    """A timer that has done its work when `start` returns."""

    def start(self) -> None:
        """Start it, and wait for it."""
        self.interval = 0.0
        super().start()
        self.join(_SECONDS_TO_WAIT)


def _timer(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    made = (_AtOnce if use.is_fixed else function)(*arguments, **keywords)
    action = made.function

    def noted(*given: Any, **named: Any) -> Any:
        use.note(lambda: repr(made.interval))
        return action(*given, **named)

    made.function = noted
    return made


def _alarm(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return _armed(use, function, arguments, signal.SIGALRM, arguments)


def _interval(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return _armed(use, function, arguments, _SIGNALS.get(arguments[0]) if arguments else None, arguments[1:])


def _armed(use: Use, function: Function, arguments: tuple[Any, ...], sent: Any, times: tuple[Any, ...]) -> Any:
    """Call a function that sends a signal after some time; these functions take no keywords."""
    handler = None if sent is None else signal.getsignal(sent)
    if not times or not times[0] or not callable(handler):
        # The call switches the timer off, or the signal would end the program.
        return function(*arguments)
    handler = getattr(handler, _HANDLER, handler)

    def noted(number: int, frame: Any) -> Any:
        use.note(lambda: repr(times))
        return handler(number, frame)

    setattr(noted, _HANDLER, handler)
    try:
        signal.signal(sent, noted)
    except ValueError:
        # Only the main thread may set the handler of a signal.
        return function(*arguments)
    if not use.is_fixed:
        return function(*arguments)
    before = function(*arguments[: -len(times)], 0)
    signal.raise_signal(sent)
    return before


TIMER_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(TIMERS, _timer, "threading", "Timer"),
    *functions(TIMERS, _alarm, "signal", "alarm"),
    *functions(TIMERS, _interval, "signal", "setitimer"),
)
