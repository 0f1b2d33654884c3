"""What a resumed run lacks and can be given from outside: tried in further runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from determinism.comparison.result import Comparison, Fix, Missing
from determinism.diagnose.checkpoints import PARTS
from determinism.resume.observed import ResumedProcess
from determinism.types import Role

MOMENTS = ("batch", "iterator")
"""When generators are put back: before each batch that is asked for until the first step; before each iterator of a data loader."""
WITHOUT_LOADER = "record"
"""The moment where no data loader gives batches: once the last record before the first step was made, so after loading."""

_FROM_OUTSIDE = ("rng-torch", "rng-python", "rng-numpy")
_HASH_SEED = "PYTHONHASHSEED"
_ELSE = "own-data"
"""What is named beside generators that were put back, where the one or the other is so."""
_DEPARTS = "resume-first-departs"


@dataclass(frozen=True)
class ResumeTrial:
    """One way to run the program once more."""

    title: str
    generators: Mapping[str, object] | None = None
    """What the resumed run is asked to put back, without `from`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for all three runs."""
    prefix: Sequence[str] = ()
    """Words that go before each command."""


def last_before_steps(processes: Sequence[ResumedProcess]) -> dict[str, int]:
    """By the key of a process the last record of the resumed run before its first step; empty if data loaders give batches there."""
    found = {}
    for process in processes:
        if process.parts is None:
            continue
        part = process.parts[1]
        first = next((chunk for chunk in part.chunks() if chunk.rows), None)
        if first is not None and first.columns["role"][0] == Role.BATCH:
            return {}
        found[process.full.key] = part.start - 1
    return found


def generator_trials(missing: Sequence[Missing], last: Mapping[str, int]) -> list[ResumeTrial]:
    """How the generators that were not saved can be put back; none if something else lacks too, which only the program can save.

    Args:
        missing: What a checkpoint lacks.
        last: What `last_before_steps` gives.
    """
    names = [one.identifier for one in missing if one.identifier != _ELSE]
    if not names or any(name not in _FROM_OUTSIDE for name in names):
        return []
    if last:
        request = {"which": names, "moment": WITHOUT_LOADER, "after": dict(last)}
        return [ResumeTrial("generators restored before the first step", request)]
    texts = {"batch": "before the first batch", "iterator": "before the loader is iterated over"}
    return [
        ResumeTrial(f"generators restored {texts[moment]}", {"which": names, "moment": moment}) for moment in MOMENTS
    ]


def whole_trials(comparison: Comparison, run: Sequence[str]) -> list[ResumeTrial]:
    """What is worth a try where nothing is known to lack, or the runs depart before the checkpoint.

    Args:
        comparison: How the runs compare.
        run: The command that makes a program deterministic.
    """
    departs = any(trouble.identifier == _DEPARTS for trouble in comparison.trouble)
    if not departs and (comparison.missing or comparison.first_divergence is None):
        return []
    return [
        ResumeTrial("a fixed hash seed", environment={_HASH_SEED: "0"}),
        ResumeTrial("all settings and a seed", prefix=run),
    ]


def fix_of_trial(trial: ResumeTrial) -> Fix:
    """What a trial of whole runs stands for."""
    if trial.environment:
        return Fix("hash-seed", "A fixed hash seed for all runs", None, tuple(trial.environment.items()), verified=True)
    return Fix(
        "run", "All settings, and a seed for every generator", "determinism run --seed 1 -- COMMAND", verified=True
    )


def fixes_of(missing: Sequence[Missing], *, verified: bool) -> list[Fix]:
    """For each thing that lacks what to write.

    Args:
        missing: What a checkpoint lacks.
        verified: Whether the resumed run was equal to the full one once it was given from outside.
    """
    return [Fix(one.identifier, one.fix, PARTS[one.identifier].lines, verified=verified) for one in missing]


def after_trials(missing: Sequence[Missing], outcomes: Sequence[bool | None]) -> list[Missing]:
    """What lacks by what came of putting generators back.

    If that made the runs equal, nothing else lacks. If it was in vain, a generator that the program had put back itself only followed
    something else, and is named no more where that is known; of one that was not it is said.

    Args:
        missing: What a checkpoint lacks.
        outcomes: Of each trial whether the runs were equal; None if it could not be made.
    """
    if True in outcomes:
        return [one for one in missing if one.identifier != _ELSE]
    if False not in outcomes:
        return list(missing)
    is_else = any(one.identifier == _ELSE for one in missing)
    return [
        one if one.identifier == _ELSE else replace(one, is_tried_in_vain=True)
        for one in missing
        if not (is_else and one.is_put_back)
    ]
