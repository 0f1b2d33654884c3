"""Where the files of a program lie that was started in a copy of its folder."""

from __future__ import annotations

import os

_moves: list[tuple[str, str]] = []


def set_copy(copy: str, original: str) -> None:
    """Say that this process runs in a copy of a folder."""
    _moves[:] = [(copy, original)]


def original_path(path: str) -> str:
    """The file or folder that a path leads to, or the one that this is a copy of."""
    for copy, original in _moves:
        if path == copy or path.startswith(copy + os.sep):
            return original + path[len(copy) :]
    return path


def copy_of() -> tuple[str, str] | None:
    """The folder that this process runs in and the one that it is a copy of; None if it runs in no copy."""
    return _moves[0] if _moves else None
