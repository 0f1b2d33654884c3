"""The clock. Fixed, it begins at one moment and goes on by ten milliseconds each time it is looked at.

Shifted at a line, it is ahead there: by another time at each look, in another way in each run, from a millisecond to some
days. So it shows whether that line has a say at all, be it in seconds or in dates.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from typing import Any

from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use

SOURCE = "clock"
SHIFTED = "shifted clock"

_BEGIN_NS = 1_600_000_000 * 10**9
_STEP_NS = 10**7
_ticks = itertools.count(1)
_SHORTEST_EXPONENT, _LONGEST_EXPONENT = 6.0, 15.0
_shifts = random.Random(f"{os.getpid()} {time.time_ns()}")
"""Must differ from run to run, also where random bytes are held still."""


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
    """`localtime`, `gmtime` and `ctime` take seconds; without any they look at the clock."""
    if keywords or any(argument is not None for argument in arguments):
        return function(*arguments, **keywords)
    return _noted(use, function(_now_ns(use) / 1e9) if use.is_fixed else function())


def _formatted(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`strftime` looks at the clock if it gets nothing but a format; `asctime` if it gets nothing."""
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


FUNCTIONS = (
    *functions(SOURCE, _seconds, "time", "time monotonic perf_counter process_time thread_time"),
    *functions(SOURCE, _nanoseconds, "time", "time_ns monotonic_ns perf_counter_ns process_time_ns thread_time_ns"),
    *functions(SOURCE, _broken_down, "time", "localtime gmtime ctime"),
    *functions(SOURCE, _formatted, "time", "strftime asctime"),
    *functions(SOURCE, _moment, "datetime", "datetime.now datetime.utcnow datetime.today date.today"),
)
