"""What diagnosing finds: causes of a divergence, the experiments that show them, and fixes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from determinism.trace.names import Frame


class Status(StrEnum):
    """How well a cause is established."""

    CONFIRMED = "confirmed"
    """An experiment showed it: the divergence goes with the cause, or comes with it."""
    LIKELY = "likely"
    """What was recorded points to it, and nothing was tried that would show it."""
    POSSIBLE = "possible"
    """Nothing that was seen excludes it."""


@dataclass(frozen=True)
class Experiment:
    """Runs of the program in which something was held still or stirred."""

    factor: str
    """What it was done to: the name of a factor, or a source at a line."""
    action: str
    """`fixed` or `stirred`."""
    runs: int
    equal: bool | None
    """Whether all of them were bit-identical; None where that could not be told."""
    outcome: str
    """A sentence."""


@dataclass(frozen=True)
class Cause:
    """Why the runs differ."""

    identifier: str
    title: str
    status: Status
    evidence: tuple[str, ...]
    experiments: tuple[Experiment, ...]
    sites: tuple[Frame, ...]
    """The lines at fault, the most telling one first."""


@dataclass(frozen=True)
class Fix:
    """What removes a cause."""

    identifier: str
    """That of the cause."""
    title: str
    code: str | None = None
    """The code to write."""
    environment: tuple[tuple[str, str], ...] | None = None
    """Environment variables to set, with their values."""
    verified: bool = False
    """Whether the program was run with it (and with the other fixes) and was bit-identical."""
    runs: int = 0
    """How many runs showed that."""
    step_time_ratio: float | None = None
    """How long a step takes with it, divided by how long it takes without."""
