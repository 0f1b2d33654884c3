"""What is to be checked, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CheckRequest:
    """A program and how its runs are made and compared."""

    command: Sequence[str]
    num_runs: int | None = None
    """None: two, and more if they are equal although the program is racy."""
    level: str = "op"
    steps: int | None = None
    output: Path | None = None
    keep: bool = False
    max_disk: int | None = None
    strict: bool = False
    allow_failure: bool = False
    runs_from: Path | None = None
    explain: bool | None = None
    """Whether further runs may be made; None: if a run took less than a minute."""
    fix: bool = True
    """Whether fixes that can be applied from outside are tried."""
    budget: float | None = None
    """Seconds that looking for causes may take; None for what suits the length of a run."""
    vary: Sequence[str] = ()
    """Factors that are stirred in further runs if the plain ones are equal."""
    before: str | None = None
    """A shell command that goes before each run."""
    fresh_copy: bool = False
    """Each run starts in a new copy of the working directory."""
    fail_fast: bool = False
    """Later runs end when they have shown a difference."""
