"""When files were written and read. Fixed, all of them were at one moment."""

from __future__ import annotations

from typing import Any

from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use

SOURCE = "file-time"

_SECONDS = 1_600_000_000
_FIRST_TIME = 7
"""In the sequence that a status is: the times come after what is no time."""


def _moment(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    if use.is_fixed:
        result = float(_SECONDS)
    use.note(lambda: repr(result))
    return result


def _status(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    if use.is_fixed:
        result = _at_one_moment(result)
    # When a file was read last is changed by whoever reads it, and hardly anybody asks for it.
    use.note(lambda: f"{result.st_mtime_ns} {result.st_ctime_ns}")
    return result


def _at_one_moment(status: Any) -> Any:
    kind, (sequence, named) = status.__reduce__()
    times = {name: _SECONDS * 10**9 if name.endswith("_ns") else float(_SECONDS) for name in named if "time" in name}
    return kind((*sequence[:_FIRST_TIME], *[_SECONDS] * 3, *sequence[_FIRST_TIME + 3 :]), {**named, **times})


FUNCTIONS = (
    # `os.path` has them from there, on every system.
    *functions(SOURCE, _moment, "genericpath", "getmtime getctime getatime"),
    *functions(SOURCE, _status, "os", "stat lstat fstat"),
    *functions(SOURCE, _status, "pathlib", "Path.stat Path.lstat"),
)
