"""Chooses what records the ops of this process: the observer below Python, or a dispatch mode."""

from __future__ import annotations

import os
import sys

from determinism.frameworks.torch.native import library
from determinism.frameworks.torch.native.library import NotNative
from determinism.frameworks.torch.native.recorder import NativeRecorder
from determinism.frameworks.torch.recorder import ModeRecorder, Recorder
from determinism.types import Level

VARIABLE = "DETERMINISM_RECORDER"
"""Environment variable that chooses."""
DEFAULT = "python"


def recorder_for(level: Level, *, paranoid: bool) -> tuple[Recorder, str]:
    """The recorder of the main thread, and why it is not the native one; empty if it is.

    Args:
        level: What is recorded.
        paranoid: Whether every input is digested.
    """
    facts = {"tracks_ops": level is Level.OP, "paranoid": paranoid}
    try:
        _check_wanted(level)
        if library.find() is None:
            library.build(_say)
        return NativeRecorder(library.load(), **facts), ""
    except NotNative as reason:
        return ModeRecorder(**facts), str(reason)


def _check_wanted(level: Level) -> None:
    chosen = os.environ.get(VARIABLE) or DEFAULT
    if chosen not in ("native", "python"):
        raise NotNative(f"{VARIABLE}={chosen} is neither native nor python")
    if chosen == "python":
        raise NotNative(f"{VARIABLE}=native would choose the native one")
    if level is not Level.OP:
        raise NotNative(f"at level {level} no ops are recorded")


def _say(line: str) -> None:
    print(f"determinism: {line}", file=sys.stderr)
