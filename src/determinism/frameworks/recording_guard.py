"""When a recorder records: not while it sleeps, and not while something of its own runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from determinism.trace.writer import ProcessWriter


class RecordingGuard:
    """Whether what happens now belongs to the program and is to be recorded."""

    writer: ProcessWriter

    def __init__(self) -> None:
        super().__init__()
        self.is_active = False
        self.on_first_op: Callable[[Any], None] | None = None
        """Called with the recorder when the first thing happens that is to be recorded; it begins."""
        self._is_busy = False
        """Something of ours runs outside an op; its ops are not the program's."""

    def is_ready(self) -> bool:
        """Whether what happens now is to be recorded; one that sleeps wakes up."""
        if self._is_busy or self.is_active:
            return not self._is_busy
        if self.on_first_op is not None:
            self._is_busy = True
            try:
                self.on_first_op(self)
            finally:
                self._is_busy = False
        return self.is_active

    def failed(self, what: str, error: Exception) -> None:
        """A failure of ours never reaches the program: it becomes a blind spot."""
        self.writer.blind_spot("handler-failed", what, f"{type(error).__name__}: {error}"[:300])

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let ops run that are not the program's."""
        previous, self._is_busy = self._is_busy, True
        try:
            yield
        finally:
            self._is_busy = previous

    def run_unrecorded(self, action: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Do something of ours outside an op: its own ops are not recorded, its failure becomes a blind spot."""
        if not self.is_ready():
            return None
        self._is_busy = True
        try:
            return action(*arguments, **keywords)
        except Exception as error:
            self.failed(getattr(action, "__qualname__", repr(action)), error)
            return None
        finally:
            self._is_busy = False
