"""Shows the program another time and day in each run."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DAY = 86400.0


def start(number: int) -> None:
    """Shift the functions of `time` that tell the time of day; a clock that only measures how long things take stays as it is.

    `datetime.datetime` asks the system itself and is not shifted; `datetime.date.today` asks `time.time`.
    """
    shift = number * (37 * _DAY + 4321.0)
    clock, clock_ns, localtime, gmtime = time.time, time.time_ns, time.localtime, time.gmtime

    def shifted_localtime(seconds: Any = None) -> time.struct_time:
        return localtime(clock() + shift if seconds is None else seconds)

    def shifted_gmtime(seconds: Any = None) -> time.struct_time:
        return gmtime(clock() + shift if seconds is None else seconds)

    time.time = lambda: clock() + shift
    time.time_ns = lambda: clock_ns() + int(shift * 1e9)
    time.localtime = shifted_localtime
    time.gmtime = shifted_gmtime
    ctime, asctime, strftime = time.ctime, time.asctime, time.strftime
    time.ctime = lambda seconds=None: ctime(clock() + shift if seconds is None else seconds)
    time.asctime = lambda parts=None: asctime(shifted_localtime() if parts is None else parts)
    time.strftime = lambda text, parts=None: strftime(text, shifted_localtime() if parts is None else parts)
