"""The lines around a place of the program, as far as its file still holds what ran."""

from __future__ import annotations

import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from determinism.trace.names import Frame

LINES_AROUND = 4
LONGEST_LINE = 400
_LARGEST_FILE = 4_000_000
_SUFFIXES = {".py", ".pyw"}
"""A trace may come from somebody else and name any file: only source code is quoted."""


def contexts(frames: Iterable[Frame | None]) -> list[dict[str, Any]]:
    """The lines around places, each place once; places whose file is gone or has changed since are left out.

    Each has `file` and `line`, as the place has, `first`, the number of the first of `lines`, and `lines`.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for frame in frames:
        if frame is not None and (frame.file, frame.line) not in found:
            lines = _lines(frame)
            if lines is not None:
                found[frame.file, frame.line] = lines
    return list(found.values())


def _lines(frame: Frame) -> dict[str, Any] | None:
    source = _source(Path(frame.file))
    code = frame.code.strip()
    if source is None or not code or not 1 <= frame.line <= len(source):
        return None
    # What was recorded is one line of the statement that ran.
    if source[frame.line - 1].strip() != code:
        return None
    first = max(1, frame.line - LINES_AROUND)
    shown = [line[:LONGEST_LINE] for line in source[first - 1 : frame.line + LINES_AROUND]]
    return {"file": frame.file, "line": frame.line, "first": first, "lines": shown}


def _source(path: Path) -> list[str] | None:
    try:
        if path.suffix not in _SUFFIXES or not path.is_file() or path.stat().st_size > _LARGEST_FILE:
            return None
        with tokenize.open(path) as file:
            # Not `splitlines`: Python counts lines by line feeds only.
            return file.read().split("\n")
    except (OSError, SyntaxError, ValueError):
        return None
