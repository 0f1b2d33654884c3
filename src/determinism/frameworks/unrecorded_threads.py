"""Says which threads of the program use a framework besides the one that is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable

from determinism.trace.writer import ProcessWriter


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
