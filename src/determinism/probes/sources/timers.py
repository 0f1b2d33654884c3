"""What goes off after some time, while the program does something else. Fixed, it goes off at once, before the program goes on."""

from __future__ import annotations

import signal
import threading
from typing import Any

from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use

SOURCE = "timer"

_SECONDS_TO_WAIT = 5.0
"""For what a timer does; longer only where it waits for a lock that the program holds."""
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
    result = (_AtOnce if use.is_fixed else function)(*arguments, **keywords)
    use.note(lambda: repr(result.interval))
    return result


def _alarm(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return _armed(use, function, arguments, keywords, signal.SIGALRM, *arguments)


def _interval(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    which, *times = arguments or (None,)
    return _armed(use, function, arguments, keywords, _SIGNALS.get(which), *times)


def _armed(
    use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any], sent: Any, *times: Any
) -> Any:
    if not times or not times[0] or sent is None or not callable(signal.getsignal(sent)):
        # It is switched off, or ends the program if nobody switches it off before.
        return function(*arguments, **keywords)
    use.note(lambda: repr(times))
    if not use.is_fixed:
        return function(*arguments, **keywords)
    before = function(*arguments[: -len(times)], 0)
    signal.raise_signal(sent)
    return before


FUNCTIONS = (
    *functions(SOURCE, _timer, "threading", "Timer"),
    *functions(SOURCE, _alarm, "signal", "alarm"),
    *functions(SOURCE, _interval, "signal", "setitimer"),
)
