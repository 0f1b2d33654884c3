"""Threads in which nothing is recorded: those from before recording began, and those that a recorder does not see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence

from determinism.trace.writer import ProcessWriter

_MOST_NAMED = 8
_KERNEL_PACKAGES = frozenset({"ipykernel", "IPython", "zmq", "jupyter_client", "tornado", "debugpy", "_pydevd_bundle"})
"""What a notebook's kernel, and the debugger in it, run in threads."""
_RUNS_CELLS = frozenset({"SubshellThread"})
"""Threads of the kernel in which code of the user runs, from ipykernel 7 on."""


def program_threads(recorded: Container[int | None]) -> list[str]:
    """Name the running threads of the program that are not recorded; those that serve a notebook are none of its.

    Args:
        recorded: Identifiers of the threads that are recorded.
    """
    return [
        thread.name for thread in threading.enumerate() if thread.ident not in recorded and not _serves_notebook(thread)
    ]


def _serves_notebook(thread: threading.Thread) -> bool:
    if type(thread).__name__ in _RUNS_CELLS:
        return False
    # What a thread runs is forgotten when it ends.
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, str(getattr(target, "__module__", "")))
    return any(module.partition(".")[0] in _KERNEL_PACKAGES for module in modules)


def note_earlier_threads(writer: ProcessWriter, names: Sequence[str]) -> None:
    """Tell of them as one blind spot: what is true of one is of all.

    Args:
        writer: Of this process.
        names: Those of the threads.
    """
    if not names:
        return
    named = ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )
    began, ops = ("it began", "its ops are") if len(names) == 1 else ("they began", "their ops are")
    writer.blind_spot("thread", named, f"{began} before the framework was imported, and {ops} not recorded")


class UnrecordedThreads:
    """Notes each of them once, as a blind spot."""

    def __init__(
        self, reason: str, writer: Callable[[], ProcessWriter | None], note_racy: Callable[[str], None]
    ) -> None:
        """Nothing is noted yet.

        Args:
            reason: Why they are not recorded.
            writer: Gives what keeps blind spots; None while nothing is recorded.
            note_racy: Told that threads take part.
        """
        self._reason = reason
        self._writer = writer
        self._note_racy = note_racy
        self._noted: set[int] = set()

    def used(self) -> None:
        """This thread, which is not the recorded one, uses the framework."""
        ident = threading.get_ident()
        writer = None if ident in self._noted else self._writer()
        if writer is None:
            return
        self._noted.add(ident)
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        if thread is None or isinstance(thread, threading._DummyThread):
            # A thread of the framework runs the program's function within something whose result is recorded.
            return
        writer.blind_spot("thread", thread.name, self._reason)
        self._note_racy("threads")
