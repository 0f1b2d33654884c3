"""Puts a wrapper in the place of a function, takes it off again, and leaves the frames of recorders out of every traceback."""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

Undo = Callable[[], None]


class Replaced:
    """A wrapper in the place of a function; calling it takes the wrapper off."""

    def __init__(self, owner: Any, name: str, wrapper: Any) -> None:
        self._owner = owner
        self._name = name
        self._own = vars(owner).get(name)
        self._wrapper = wrapper
        setattr(owner, name, wrapper)

    def __call__(self) -> None:
        """Take the wrapper off, unless somebody has put another one over it since."""
        self.take_off()

    def take_off(self) -> bool:
        """See `__call__`; whether it was taken off."""
        if vars(self._owner).get(self._name) is not self._wrapper:
            return False
        if self._own is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)
        return True

    def put_back(self) -> None:
        """Put a wrapper that was taken off in its place again, unless somebody has put another one there since."""
        if vars(self._owner).get(self._name) is self._own:
            setattr(self._owner, self._name, self._wrapper)


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> Undo:
    """Replace a function or method.

    Args:
        owner: The module or class that has it.
        name: Its name there.
        around: Called in its place, with the original first.

    Returns:
        What takes the wrapper off, unless somebody has put another one over it since.
    """

    def wrapper_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        return wrapper

    return replace(owner, name, wrapper_of)


def replace(owner: Any, name: str, wrapper_of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Replaced:
    """Replace a function or method, where a call more would cost too much.

    Args:
        owner: See `wrap`.
        name: See `wrap`.
        wrapper_of: Makes of the original what is called in its place.

    Returns:
        See `wrap`.
    """
    original = getattr(owner, name)
    return Replaced(owner, name, functools.wraps(original)(wrapper_of(original)))


_OWN = tuple(
    f"determinism.{name}"
    for name in (
        "device_digest", "digest", "errors", "frameworks.", "import_hook", "launch.", "probes.", "redaction", "session.",
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
