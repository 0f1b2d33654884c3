"""Runs programs with and without `determinism run`, and returns their output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.commands import run

PROGRAMS = Path(__file__).parent / "programs" / "deterministic"
ENVIRONMENT = {"PYTHONHASHSEED": "random", "TF_CPP_MIN_LOG_LEVEL": "3"}


def printed(folder: Path, *command: str | Path, before: tuple[str, ...] = ("run", "--seed", "1", "--")) -> str:
    """Return the output of a command that is run by `determinism run`."""
    finished = run(folder, *before, *command, environment=ENVIRONMENT)
    assert finished.status == 0, finished.stderr
    assert "determinism: " not in finished.stderr
    return finished.stdout.decode()


def plain(*command: str | Path) -> str:
    """Return its output without `determinism run`."""
    return subprocess.check_output([*map(str, command)], env={**os.environ, **ENVIRONMENT}, text=True, timeout=600)


def becomes_deterministic(folder: Path, program: str) -> bool:
    """Whether a program prints different digests in two plain runs, and the same in two runs by `determinism run`."""
    command = (sys.executable, PROGRAMS / program)
    first, second = plain(*command), plain(*command)
    assert len(first.strip()) == 64
    return first != second and printed(folder, *command) == printed(folder, *command)


def goes_on_from_the_middle(folder: Path, program: str, *arguments: str) -> bool:
    """Whether two full runs, and one stopped in the middle of an epoch and resumed, end in the same bits."""
    command = (sys.executable, PROGRAMS / program, *arguments)
    full, twin = (printed(folder, *command, "full", "unused") for _ in range(2))
    assert printed(folder, *command, "first", folder / "middle.state") == ""
    resumed = printed(folder, *command, "resumed", folder / "middle.state")
    assert len(full.split()[0]) == 64
    return full == twin == resumed
