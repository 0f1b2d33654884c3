"""Says what a checkpoint lacks, and what to write so that it does not."""

from __future__ import annotations

from collections.abc import Iterator

from determinism.comparison.result import Comparison, Missing
from determinism.report.entry import Entry, Tone, Weight
from determinism.report.places import frame_text
from determinism.types import Verdict

_NAMES = {
    "model": "parameters or buffers of the model",
    "optimizer": "the state of the optimizer",
    "scheduler": "the learning rate: the state of its scheduler",
    "scaler": "the state of the gradient scaler",
    "rng-torch": "the state of PyTorch's generator",
    "rng-python": "the state of Python's generator",
    "rng-numpy": "the state of NumPy's generator",
    "rng-generator": "the state of a generator of the program's own",
    "number": "a number that the program keeps itself",
    "own-data": "something that the program keeps itself, beside tensors",
    "carried-tensor": "a tensor that the program carries from step to step",
    "training-mode": "the mode of the model: training or evaluation",
    "optimizer-order": "the order of the optimizer's parameters",
    "gradients": "gradients that were added up since the last step",
    "sampler-position": "the position in the epoch: which samples were consumed",
}

_NEVER_SAVED = frozenset({"training-mode", "optimizer-order"})
"""What no checkpoint holds, so that the program itself has to make it as it was."""

_VERIFIED = "Verified: put back from outside, in runs made for it, the resumed run was equal to the full one."

_IN_VAIN = (
    "Not verified: put back from outside, in runs made for it, it did not make the resumed run equal. Something else lacks too, of which its "
    "other state may only follow, or the program draws between the point where it is put back and its first step."
)


def missing_entries(comparison: Comparison) -> Iterator[Entry]:
    """Name each part, and the line that saves."""
    if comparison.missing is None or comparison.verdict is Verdict.SAME:
        return
    yield from _whole_fix_entries(comparison)
    if comparison.verdict is not Verdict.DIFFERENT:
        return
    if not comparison.missing:
        text = "It could not be told what the checkpoint lacks: it is none of what checkpoints are known to be without."
        yield Entry(text, "not saved", Weight.CORE)
        return
    for number, missing in enumerate(comparison.missing):
        label = _label(missing)
        is_first = not number or label != _label(comparison.missing[number - 1])
        yield Entry(_NAMES[missing.identifier], label if is_first else "", Weight.CORE)
        yield Entry(missing.fix, weight=Weight.MAIN, lines=4, indent=4)
        if any(fix.identifier == missing.identifier and fix.verified for fix in comparison.fixes):
            yield Entry(_VERIFIED, weight=Weight.CORE, lines=4, indent=4)
        if missing.is_tried_in_vain:
            yield Entry(_IN_VAIN, weight=Weight.CORE, lines=6, indent=4)
    site = comparison.missing[0].site
    if site is None:
        yield Entry(
            "No line is known that saves: nothing went through torch.save or determinism.state.",
            "saved at",
            Weight.MAIN,
        )
        return
    yield Entry(frame_text(site), "saved at", Weight.CORE)
    if site.code.strip():
        yield Entry(site.code.strip(), weight=Weight.CORE, tone=Tone.CODE, lines=2, indent=4)


def _label(missing: Missing) -> str:
    if missing.is_put_back:
        return "put back early"
    return "not put back" if missing.is_saved or missing.identifier in _NEVER_SAVED else "not saved"


def _whole_fix_entries(comparison: Comparison) -> Iterator[Entry]:
    """What makes the runs equal that is no matter of the checkpoint."""
    named = {missing.identifier for missing in comparison.missing or []}
    for fix in comparison.fixes:
        if fix.identifier not in named and fix.verified:
            written = " ".join(f"{name}={value}" for name, value in fix.environment or ()) or fix.code or ""
            yield Entry(f"{written}: {fix.title}", "cure", Weight.CORE, lines=2)
            yield Entry("Verified: with it the resumed run was equal to the full one.", weight=Weight.CORE)
