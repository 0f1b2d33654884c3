"""Threads from before recording began, in which nothing is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from determinism.trace.writer import ProcessWriter

_MOST_NAMED = 8


def note_earlier_threads(writer: ProcessWriter, names: Sequence[str]) -> None:
    """Tell of them as one blind spot: those of a notebook's kernel are many, and what is true of one is of all.

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
