"""What a resumed run lacks and can be given from outside: tried in further runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from determinism.comparison.findings import Fix
from determinism.comparison.result import Comparison, Missing

MOMENTS = ("batch", "iterator")
"""When generators are put back: before each batch that is asked for until the first step; before each iterator of a data loader."""

_FROM_OUTSIDE = ("rng-torch", "rng-python", "rng-numpy")
_HASH_SEED = "PYTHONHASHSEED"
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


def generator_trials(missing: Sequence[Missing]) -> list[ResumeTrial]:
    """How the generators that were not saved can be put back; none if something else lacks too, which only the program can save."""
    names = [one.identifier for one in missing]
    if not names or any(name not in _FROM_OUTSIDE for name in names):
        return []
    texts = {"batch": "before the first batch", "iterator": "before the loader is iterated over"}
    return [
        ResumeTrial(f"generators put back {texts[moment]}", {"which": names, "moment": moment}) for moment in MOMENTS
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
    return [Fix(one.identifier, one.fix, _LINES.get(one.identifier), verified=verified) for one in missing]


def in_vain(missing: Sequence[Missing]) -> list[Missing]:
    """The same, of which it is known that to put it back from outside did not help."""
    return [replace(one, is_tried_in_vain=True) for one in missing]


_LINES = {
    "model": 'saved["model"] = model.state_dict()\nmodel.load_state_dict(saved["model"])',
    "optimizer": 'saved["optimizer"] = optimizer.state_dict()\noptimizer.load_state_dict(saved["optimizer"])',
    "scheduler": 'saved["scheduler"] = scheduler.state_dict()\nscheduler.load_state_dict(saved["scheduler"])',
    "scaler": 'saved["scaler"] = scaler.state_dict()\nscaler.load_state_dict(saved["scaler"])',
    "rng-torch": 'saved["rng-torch"] = torch.get_rng_state()\ntorch.set_rng_state(saved["rng-torch"])',
    "rng-python": 'saved["rng-python"] = random.getstate()\nrandom.setstate(saved["rng-python"])',
    "rng-numpy": 'saved["rng-numpy"] = numpy.random.get_state()\nnumpy.random.set_state(saved["rng-numpy"])',
    "number": 'saved["step"] = step\nstep = saved["step"]',
    "gradients": 'saved["gradients"] = [p.grad for p in model.parameters()]\n'
    'for p, gradient in zip(model.parameters(), saved["gradients"]):\n    p.grad = gradient',
    "rng-generator": 'saved["generator"] = generator.get_state()\ngenerator.set_state(saved["generator"])',
    "sampler-position": "loader = determinism.state.resumable(loader)\n"
    'determinism.state.capture(loader=loader, ...).save("last.state")\n'
    'determinism.state.restore(determinism.state.load("last.state"), loader=loader, ...)',
}
"""The lines to add where the program saves, and where it loads."""
