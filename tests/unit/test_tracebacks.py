"""Frames of recorders are left out of tracebacks, even if an instruction has no line."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import Any

from determinism.frameworks.wrapping import without_own_frames

NOWHERE = 100_000
"""An offset without an instruction, and so without a line."""


def frame_of(module: str) -> FrameType:
    found: dict[str, Any] = {"__name__": module, "get": sys._getframe}
    exec("frame = get()", found)
    frame: FrameType = found["frame"]
    return frame


def test_own_frames_are_removed_and_other_frames_are_unchanged() -> None:
    inner = TracebackType(None, frame_of("numpy"), NOWHERE, -1)
    own = TracebackType(inner, frame_of("determinism.launch.child"), 0, 1)
    outer = TracebackType(own, frame_of("__main__"), 0, 7)
    shown = without_own_frames(outer)

    assert shown is not None and shown.tb_next is not None and shown.tb_next.tb_next is None
    assert (shown.tb_frame, shown.tb_lineno) == (outer.tb_frame, 7)
    assert (shown.tb_next.tb_frame, shown.tb_next.tb_lineno) == (inner.tb_frame, None)


def test_a_traceback_without_own_frames_is_unchanged() -> None:
    plain = TracebackType(None, frame_of("__main__"), NOWHERE, -1)
    assert without_own_frames(plain) is plain
