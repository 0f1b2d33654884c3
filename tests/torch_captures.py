"""Runs a small PyTorch program in this process up to a given record, and captures that record."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import determinism
from determinism.diagnose.confirm import MOST_BYTES
from determinism.frameworks.torch.evidence import Capture


class Captured(BaseException):
    """Ends the program of a test, as exiting the process ends a real program."""


def capture(
    program: Callable[[], Any],
    op: str,
    folder: Path,
    *,
    phase: str = "init",
    occurrence: int = 0,
    repeats: int = 20,
    seconds: float = 0.5,
    most_bytes: int = MOST_BYTES,
) -> dict[str, Any]:
    """Record a program up to a given record and capture that record; the tensors are kept in `folder/kept`."""
    request: dict[str, Any] = {"step": 0, "phase": phase, "op": op, "module": None, "occurrence": occurrence}
    request |= {"repeats": repeats, "seconds": seconds, "most_bytes": most_bytes, "ends": True}
    kept = folder / "kept"

    def finish(reason: str) -> None:
        raise Captured(reason)

    with contextlib.suppress(Captured), determinism.record(folder / "trace") as session:
        kept.symlink_to(session.writer.folder)
        session.recorder.capture = Capture(request, session.writer.folder, finish)
        program()
    found: dict[str, Any] = json.loads((kept / "capture.json").read_text())
    return found
