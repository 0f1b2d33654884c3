"""What an experiment changes about one run, as what starts the program needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from determinism.diagnose.intervention import Intervention
from determinism.factors.request import FactorRequest
from determinism.factors.surroundings import before_start, factor_environment
from determinism.probes.request import ProbeRequest


@dataclass(frozen=True)
class Conditions:
    """The surroundings of one run."""

    environment: Mapping[str, str] | None = None
    """The environment that the program has; None for the current one."""
    before_start: Callable[[], None] | None = None
    """What its process does before it becomes the program."""


def conditions_of(
    intervention: Intervention,
    number: int,
    *,
    notes: Path | None = None,
    copied: tuple[str, str] | None = None,
    temporary: Path | None = None,
) -> Conditions:
    """Give a run the surroundings that an experiment asks for.

    Args:
        intervention: What is held still or stirred. That it may need a fresh copy is not seen to here.
        number: Which run of the experiment it is, from 1; what is stirred depends on it.
        notes: Folder for notes of what the program takes from outside; None if none are wanted.
        temporary: Folder for temporary files, which exists; None for the usual one.
        copied: The copy that the program runs in, and the folder that it is a copy of.
    """
    environment: dict[str, str] = dict(os.environ)
    factors = FactorRequest({factor: action.value for factor, action in intervention.factors}, number)
    if factors.actions:
        environment = factor_environment(environment, factors)
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    if notes is not None:
        notes.mkdir(parents=True, exist_ok=True)
    request = ProbeRequest(notes, intervention.in_order, changes=intervention.ordered_changes, copied=copied)
    if request.probes or request.changes:
        environment |= request.to_environment()
    return Conditions(environment, before_start(factors))
