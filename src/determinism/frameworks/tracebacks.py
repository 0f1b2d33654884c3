"""Tracebacks as they are without us: the frames of recorders are left out wherever one is shown."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

_OWN = tuple(
    f"determinism.{name}"
    for name in (
        "device_digest", "digest", "exit_status", "frameworks.", "import_hook", "launch.", "probes.", "redaction", "session.",
        "sites", "source_files", "trace.",
    )
)  # fmt: skip
"""Modules whose names begin so run between the program and what it calls."""


def hide_own_frames() -> Callable[[], None]:
    """Leave our frames out of what the interpreter, its threads and the module `traceback` show.

    pytest goes by a mark in a frame's module, and gets that.

    Returns:
        What ends it, as far as nobody else has replaced the same since.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(_OWN):
            vars(module).setdefault("__tracebackhide__", True)
    undos = [
        _replace(owner, name, make)
        for owner, name, make in (
            (sys, "excepthook", _program_hook),
            (sys, "__excepthook__", _program_hook),
            (threading, "excepthook", _thread_hook),
            (threading, "__excepthook__", _thread_hook),
            (traceback.TracebackException, "__init__", _shown_traceback),
        )
    ]

    def undo() -> None:
        for one in undos:
            one()

    return undo


def without_own_frames(shown: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of recorders; the same one if it has none."""
    places = []
    at = shown
    while at is not None:
        places.append(at)
        at = at.tb_next
    kept = [place for place in places if not str(place.tb_frame.f_globals.get("__name__")).startswith(_OWN)]
    if len(kept) == len(places):
        return shown
    made: TracebackType | None = None
    for place in reversed(kept):
        # None where an instruction has no line, as some of a class body; it is made with -1 then.
        made = TracebackType(made, place.tb_frame, place.tb_lasti, -1 if place.tb_lineno is None else place.tb_lineno)
    return made


def leave_out_own_frames(error: BaseException) -> None:
    """Take the frames of recorders out of the tracebacks that an exception and its causes hold."""
    _clean(error, set())


def _clean(error: BaseException | None, seen: set[int]) -> None:
    # The interpreter shows what the exceptions hold, not what it hands to the hook.
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = without_own_frames(error.__traceback__)
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *inner):
        _clean(other, seen)


def _program_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def excepthook(kind: Any, value: Any, shown: Any, /) -> Any:
        leave_out_own_frames(value)
        return original(kind, value, without_own_frames(shown))

    return excepthook


def _thread_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def excepthook(args: Any, /) -> Any:
        leave_out_own_frames(args.exc_value)
        return original(args)

    return excepthook


def _shown_traceback(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, exc_type: Any, exc_value: Any, exc_traceback: Any, *args: Any, **kwargs: Any) -> None:
        original(self, exc_type, exc_value, without_own_frames(exc_traceback), *args, **kwargs)

    return __init__


def _replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    original = getattr(owner, name)
    replacement = make(original)
    setattr(owner, name, replacement)

    def undo() -> None:
        if getattr(owner, name) is replacement:
            setattr(owner, name, original)

    return undo
