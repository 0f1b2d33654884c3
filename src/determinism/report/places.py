"""How places in the user's code and folders are written."""

from __future__ import annotations

import os
from pathlib import PurePath

from determinism.trace.names import Frame

LONGEST_PATH = 150
LONGEST_NAME = 60


def path_text(path: str) -> str:
    """Write a path relative to the current folder if it is below it; of a very long one the end is kept."""
    try:
        shown = str(PurePath(path).relative_to(os.getcwd()))
    except (ValueError, OSError):
        shown = path
    return shown if len(shown) <= LONGEST_PATH else f"...{shown[3 - LONGEST_PATH :]}"


def line_text(frame: Frame) -> str:
    """Write `file:line`."""
    return f"{path_text(frame.file)}:{frame.line}"


def frame_text(frame: Frame) -> str:
    """Write `file:line in function`."""
    if not frame.function or frame.function == "<module>":
        return line_text(frame)
    name = frame.function
    return f"{line_text(frame)} in {name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + '...'}"
