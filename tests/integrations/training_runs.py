"""Runs the training programs in `programs/` in this process: to the end, and resumed from a checkpoint."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import determinism
from determinism.comparison.result import Comparison
from determinism.integrations.training import TrainingWarning
from determinism.session import seeding
from tests.e2e.commands import run

PROGRAMS = Path(__file__).parent / "programs"


@cache
def program(name: str) -> Any:
    """One of the programs, as a module."""
    specification = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def checked(folder: Path, name: str) -> tuple[int, str, int]:
    """Exit status, verdict and steps of `determinism check` on one of the programs."""
    options = ("--fresh-copy", "--json", "report.json")
    finished = run(folder, "check", *options, "--", sys.executable, str(PROGRAMS / f"{name}.py"), "checkpoints")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return finished.status, report["verdict"], report["recorded"]["steps"]


def scramble() -> None:
    """Leave the generators as they are in a new process: unseeded, and different each time."""
    seeding.activate(None)
    random.seed()
    np.random.seed()


def resumed(training: Any, folder: Path, checkpoint: str, **options: Any) -> tuple[str, str]:
    """The results of an uninterrupted training, and of one resumed from a checkpoint of it."""
    scramble()
    full = training(folder / "full", **options)
    assert (folder / "full" / checkpoint).exists(), sorted(path.name for path in (folder / "full").iterdir())
    scramble()
    return full, training(folder / "resumed", folder / "full" / checkpoint, **options)


def recorded_twice(training: Any, folder: Path, **options: Any) -> Comparison:
    """Record a training twice, and compare the recordings."""
    for place in ("a", "b"):
        scramble()
        with determinism.record(folder / f"trace-{place}"):
            training(folder / place, **options)
    return determinism.compare(folder / "trace-a", folder / "trace-b")


@contextmanager
def settings_put_back() -> Iterator[None]:
    """Restore settings and seeds after a test, so that they do not affect the next one."""
    before = seeding.capture_states()
    try:
        with determinism.enable():
            yield
    finally:
        before()


def run_documented(section: str, *arguments: str) -> str:
    """Run the program in a section of the page on trainers, in this process and folder; returns the last line that it prints."""
    text = (PROGRAMS.parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")
    code = text.partition(f"\n## {section}\n")[2].partition("```python\n")[2].partition("```")[0]
    assert code, section
    scramble()
    output, given = io.StringIO(), sys.argv
    sys.argv = ["train.py", *arguments]
    try:
        with contextlib.redirect_stdout(output):
            exec(compile(code, "train.py", "exec"), {"__name__": "__main__"})
    finally:
        sys.argv = given
    last = output.getvalue().splitlines()[-1]
    assert last.startswith(("weights 0x", "weights -0x")), output.getvalue()
    return last


def documented_outputs(section: str) -> list[str]:
    """The lines about weights in a section of the page on trainers."""
    text = (PROGRAMS.parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")
    shown = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [line for line in shown.splitlines() if line.startswith("weights ")]


def pattern(lines: list[str]) -> list[int]:
    """Which lines are equal, since their bits depend on the machine: for each, the position of the first equal line."""
    return [lines.index(line) for line in lines]


PLANTED = 3
"""The step at which a training is changed."""


def check_ledger(training: Callable[[Path, bool], Any], folder: Path, group: str) -> None:
    """Assert that a training writes its ledger, that an equal one is the same, and that one changed at step `PLANTED` differs there.

    Args:
        training: Trains with the ledger at this path, changed or not, and returns its `TrainingLedger`.
        folder: An empty folder.
        group: The group of the ledger that the change reaches first.
    """
    path = folder / "train.golden"
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        for comparison in (None, "same"):
            scramble()
            found = training(path, False).comparison
            assert (found and found.verdict) == comparison
            before = path.read_bytes()
            assert len(before) < 5000
    scramble()
    with pytest.warns(TrainingWarning, match=rf"at step {PLANTED}(.|\n)*\(trainer-ledger-differs\)"):
        found = training(path, True).comparison
    assert (found.difference.step, found.difference.group) == (PLANTED, group)
    assert path.read_bytes() == before
