"""The sentences of the terminal report."""

from __future__ import annotations

from determinism.compare.result import Comparison, Divergence
from determinism.types import Kind, Level

_PHASES = {
    "init": "during initialisation",
    "data": "while loading data",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "communication": "in the communication between processes",
    "checkpoint": "at a checkpoint",
}

_KINDS = {
    Kind.STRUCTURE: "The runs did not do the same here: records of one run are missing in another.",
    Kind.RNG: "A random op ran with different states of its random generator.",
    Kind.DATA: "A value that came from outside the framework differs: a batch, a file, an array, another library.",
    Kind.ARGUMENT: "A plain value passed to the op differs: a number, an index, a shape or a flag.",
    Kind.ORDER: (
        "The same values came in a different order: the program went through something that has no fixed order, "
        "such as a set, a queue or a folder listing."
    ),
    Kind.UNINITIALIZED: "The op read memory that nobody had written to, so it got whatever was there.",
    Kind.MUTATION: (
        "A tensor was changed between two ops, not by an op: through a NumPy view, by another thread "
        "or by an extension."
    ),
    Kind.OP: "The op itself is the origin: from equal inputs and arguments it gave different outputs.",
}

_STOPS = {
    "steps": "ended by --steps",
    "fail-fast": "ended by --fail-fast",
    "max-disk": "ended its recording at the limit of --max-disk",
    "interrupt": "was interrupted",
}


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Write a number with its noun, such as `1,234 records`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(items: list[str]) -> str:
    """Join as `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def prose(text: str) -> str:
    """Make one paragraph of a text that may have line breaks."""
    return " ".join(text.split())


def kind_sentence(kind: Kind | None, level: str) -> str:
    """Explain a kind of divergence in one sentence."""
    if kind is not None:
        return _KINDS[kind]
    if level != Level.OP:
        return f"Values differ here. Why is not known at level {level}; rerun with --level op to see it."
    return "The outputs of this op differ. What made them differ was not established."


def stop_phrase(stopped_by: str) -> str:
    """Say what ended a run."""
    return _STOPS.get(stopped_by, f"was stopped by {stopped_by}")


def headline(comparison: Comparison) -> str:
    """The first line of the report: the verdict and what it rests on."""
    match comparison.verdict:
        case "same":
            return _same_headline(comparison)
        case "different":
            return f"Different: {_difference(comparison)}"
        case _:
            return f"Inconclusive: {_reason(comparison)}"


def _same_headline(comparison: Comparison) -> str:
    recorded = comparison.recorded
    verb = "was" if recorded.records == 1 else "were"
    steps = f" in {counted(recorded.steps, 'step')}" if recorded.steps else ""
    runs = counted(len(comparison.runs), "run")
    return f"Same: {counted(recorded.records, 'record')}{steps} {verb} bit-identical in {runs}"


def _difference(comparison: Comparison) -> str:
    first = comparison.first_divergence
    if first is not None:
        return f"{_departure(comparison, first)} at {_when(first)}"
    statuses = [str(run.exit_status) for run in comparison.runs]
    if len(set(statuses)) > 1:
        return f"the runs ended with exit statuses {listed(statuses)}"
    if comparison.dead_differences:
        return f"{counted(comparison.dead_differences, 'value')} that nothing read"
    return "the runs are not bit-identical"


def _departure(comparison: Comparison, first: Divergence) -> str:
    if first.records_of > 0 or len(comparison.runs) == 2:
        return f"run {max(first.records_of, 1) + 1} departs from run 1"
    return f"the {len(comparison.runs)} runs depart from each other"


def _when(first: Divergence) -> str:
    phase = _PHASES.get(first.phase)
    return f"step {first.step}, {phase}" if phase else f"step {first.step}"


def _reason(comparison: Comparison) -> str:
    messages = [prose(trouble.message) for trouble in comparison.trouble]
    if len(messages) == 1:
        return messages[0]
    return f"for {len(messages)} reasons" if messages else "the runs could not be compared"
