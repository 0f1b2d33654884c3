"""What goes off after some time, while the program does something else. Fixed, it goes off at once, before the program goes on.

It is noted when it goes off, so that what only watches over a program and never does is no source.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use

SOURCE = "timer"

_SECONDS_TO_WAIT = 5.0
"""For what a timer does; longer only where it waits for a lock that the program holds."""
_HANDLER = "__determinism_handler__"
_SIGNALS = {
    getattr(signal, timer): getattr(signal, name)
    for timer, name in (("ITIMER_REAL", "SIGALRM"), ("ITIMER_VIRTUAL", "SIGVTALRM"), ("ITIMER_PROF", "SIGPROF"))
    if hasattr(signal, timer)
}


class _AtOnce(threading.Timer):
    """A timer that has done its work when it was started."""

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
    """Call what sends a signal after some time; these functions take no keywords."""
    handler = None if sent is None else signal.getsignal(sent)
    if not times or not times[0] or not callable(handler):
        # It is switched off, or ends the program if nobody switches it off before.
        return function(*arguments)
    handler = getattr(handler, _HANDLER, handler)

    def noted(number: int, frame: Any) -> Any:
        use.note(lambda: repr(times))
        return handler(number, frame)

    setattr(noted, _HANDLER, handler)
    try:
        signal.signal(sent, noted)
    except ValueError:
        # Only the main thread may say who handles a signal.
        return function(*arguments)
    if not use.is_fixed:
        return function(*arguments)
    before = function(*arguments[: -len(times)], 0)
    signal.raise_signal(sent)
    return before


FUNCTIONS = (
    *functions(SOURCE, _timer, "threading", "Timer"),
    *functions(SOURCE, _alarm, "signal", "alarm"),
    *functions(SOURCE, _interval, "signal", "setitimer"),
)
