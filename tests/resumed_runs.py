"""Makes the three runs of a resumed program within one process, and compares them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from determinism.resume.compare import compare_resumed
from determinism.resume.observed import ResumedProcess
from determinism.resume.unsaved import unsaved
from determinism.run_spec import RunSpec
from determinism.session.record import recording
from determinism.trace.opening import open_trace

Training = Callable[[Path, str, str], Any]
_GENERATORS = {"first": {"keep": True}, "resumed": {"watch": True}}
"""What `determinism check-resume` requests for the generators of each run."""
INPUTS = torch.linspace(-1, 1, 96).reshape(24, 4).sin()


def compared(folder: Path, training: Training, fault: str = "") -> ResumedProcess:
    for run in ("full", "first", "resumed"):
        torch.manual_seed(7)
        # Like a program that neither uses nor seeds them.
        random.seed(run)
        np.random.seed(len(run))
        with recording(RunSpec(folder / run, generators=_GENERATORS.get(run))):
            training(folder / "checkpoint", run, fault)
    (process,) = compare_resumed(*(open_trace(folder / run) for run in ("full", "first", "resumed")))
    assert process.first_departs is None
    return process


def lacking(process: ResumedProcess) -> list[str]:
    return [missing.identifier for missing in unsaved(process)]
