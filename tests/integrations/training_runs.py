"""Trains with the programs of `programs/` in this process: to the end, and from each checkpoint on."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import determinism
from determinism.comparison.result import Comparison
from determinism.session import seeding

PROGRAMS = Path(__file__).parent / "programs"


@cache
def program(name: str) -> Any:
    """One of the programs, as a module."""
    specification = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def scramble() -> None:
    """Leave the generators as a new process has them: seeded by nobody, and other each time."""
    seeding.activate(None)
    random.seed()
    np.random.seed()


def resumed(training: Any, folder: Path, checkpoint: str, **options: Any) -> tuple[str, str]:
    """What an uninterrupted training ends with, and one that goes on from a checkpoint of it."""
    scramble()
    full = training(folder / "full", **options)
    assert (folder / "full" / checkpoint).exists(), sorted(path.name for path in (folder / "full").iterdir())
    scramble()
    return full, training(folder / "resumed", folder / "full" / checkpoint, **options)


def recorded_twice(training: Any, folder: Path, **options: Any) -> Comparison:
    """The comparison of two recordings of a training."""
    for run in ("a", "b"):
        scramble()
        with determinism.record(folder / f"trace-{run}"):
            training(folder / run, **options)
    return determinism.compare(folder / "trace-a", folder / "trace-b")


@contextmanager
def settings_put_back() -> Iterator[None]:
    """Let a test make settings and give seeds that the next one does not have."""
    before = seeding.capture_states()
    try:
        with determinism.enable():
            yield
    finally:
        before()
        seeding.activate(None)
