"""Wraps functions, removes the wrappers again, and hides the frames of recorders in every traceback."""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from determinism.import_hook import after_import

Undo = Callable[[], None]


class Replaced:
    """A wrapper in place of a function; calling this object removes the wrapper."""

    def __init__(self, owner: Any, name: str, wrapper: Any) -> None:
        self._owner = owner
        self._name = name
        self._own = vars(owner).get(name)
        self._wrapper = wrapper
        setattr(owner, name, wrapper)

    def __call__(self) -> None:
        """Remove the wrapper, unless other code has wrapped or replaced it since."""
        self.take_off()

    def take_off(self) -> bool:
        """Remove the wrapper as `__call__` does; return whether it was removed."""
        if vars(self._owner).get(self._name) is not self._wrapper:
            return False
        if self._own is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)
        return True

    def put_back(self) -> None:
        """Reinstall a removed wrapper, unless other code has replaced the function since."""
        if vars(self._owner).get(self._name) is self._own:
            setattr(self._owner, self._name, self._wrapper)


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> Undo:
    """Replace a function or method.

    Args:
        owner: The module or class that has it.
        name: Its name there.
        around: Called in its place, with the original as its first argument.

    Returns:
        A function that removes the wrapper, unless other code has wrapped or replaced it since.
    """

    def wrapper_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        return wrapper

    return replace(owner, name, wrapper_of)


def replace(owner: Any, name: str, wrapper_of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Replaced:
    """Replace a function or method without the extra call that `wrap` adds.

    Args:
        owner: See `wrap`.
        name: See `wrap`.
        wrapper_of: Gets the original and returns its replacement.

    Returns:
        See `wrap`.
    """
    original = getattr(owner, name)
    return Replaced(owner, name, functools.wraps(original)(wrapper_of(original)))


def when_imported(module: str, watch: Callable[[Any], Iterable[Undo]], failed: Callable[[str], None]) -> Undo:
    """Wrap functions of a module right after its import; at once if it is already imported.

    Args:
        module: Full name of the module.
        watch: Gets the module, wraps its functions, and returns functions that remove the wrappers.
        failed: Called with a message if that fails.

    Returns:
        A function that removes the wrappers, and cancels the wait for the module.
    """
    undo: list[Undo] = []
    forget = after_import(module, lambda found: undo.extend(watch(found)), failed)

    def end() -> None:
        for one in (forget, *undo):
            one()

    return end


_OWN = tuple(
    f"determinism.{name}"
    for name in (
        "device_digest", "digest", "errors", "frameworks.", "import_hook", "launch.", "probes.", "redaction", "session.",
        "sites", "source_files", "trace.",
    )
)  # fmt: skip
"""Prefixes of modules that run between the program and the functions that it calls."""


def hide_own_frames() -> Callable[[], None]:
    """Hide our frames in tracebacks of the interpreter, its threads and the module `traceback`.

    Our modules also get the mark that pytest looks for.

    Returns:
        A function that undoes it, except for hooks that other code has replaced since.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(_OWN):
            vars(module).setdefault("__tracebackhide__", True)
    undos = [
        replace(owner, name, make)
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
        # `tb_lineno` is None if an instruction has no line, as some in class bodies; the constructor takes -1 for that.
        made = TracebackType(made, place.tb_frame, place.tb_lasti, -1 if place.tb_lineno is None else place.tb_lineno)
    return made


def leave_out_own_frames(error: BaseException) -> None:
    """Remove the frames of recorders from the tracebacks of an exception and its causes."""
    _clean(error, set())


def _clean(error: BaseException | None, seen: set[int]) -> None:
    # The interpreter shows the tracebacks of the exceptions, not the one that it passes to the hook.
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
