"""The recording that this process is under, whoever began it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from determinism.types import ProcessFolders, RecordingOptions


class RecordingSession(Protocol):
    """What a framework's recorder gives."""

    @property
    def has_begun(self) -> bool:
        """Whether this process has a trace of what it does with the framework; some wait until it is used."""

    def begin_at(self, frame: FrameType) -> None:
        """The recording was begun in this frame; what lies outside of it is not the program's."""

    def step(self) -> None:
        """A step ends here."""

    def returned(self, value: Any) -> None:
        """A checked function returned a value."""

    def close(self) -> None:
        """Finish the files."""

    def leave(self) -> None:
        """Finish the files and stop seeing ops in this thread."""

    def note_earlier_threads(self) -> None:
        """Count threads that cannot be recorded."""

    def forked(self) -> None:
        """This process is a forked child."""


class Recorder(Protocol):
    """A framework's module `recording`."""

    def start(self, folders: ProcessFolders, options: RecordingOptions) -> RecordingSession:
        """Begin to record this process."""


_sessions: list[RecordingSession] = []
_failed: Callable[[str], None] = warnings.warn
"""Told what could not be recorded."""


def _forked() -> None:
    for session in _sessions:
        try:
            session.forked()
        except Exception as error:
            _failed(f"Recording failed in the forked process {os.getpid()}: {type(error).__name__}: {error}")


os.register_at_fork(after_in_child=_forked)


def add(session: RecordingSession, failed: Callable[[str], None] = warnings.warn) -> None:
    """A recording began.

    Args:
        session: The recording.
        failed: Told when a forked process cannot be recorded.
    """
    global _failed
    _failed = failed
    _sessions.append(session)


def remove(session: RecordingSession) -> None:
    """A recording ended."""
    if session in _sessions:
        _sessions.remove(session)


def has_begun() -> bool:
    """Whether this process has a trace."""
    return any(session.has_begun for session in _sessions)


def is_recording() -> bool:
    """Whether this process is being recorded."""
    return bool(_sessions)


def step() -> None:
    """Say that a step of the program ends here.

    From the first call on only these calls count as the ends of steps, no longer those of optimizers. Without a
    recording it does nothing.
    """
    for session in _sessions:
        session.step()
