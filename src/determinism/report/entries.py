"""Entries: the sentences and phrases from which every form of the report is made."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from pathlib import PurePath
from typing import Any

from determinism.comparison.result import Cause, Comparison, Divergence, Fix
from determinism.exit_status import exit_phrase
from determinism.trace.names import Frame
from determinism.types import Kind, Level

# Causes and fixes as JSON.


def cause_document(cause: Cause) -> dict[str, Any]:
    """A cause, with what shows it."""
    return {
        "id": cause.identifier,
        "title": cause.title,
        "status": cause.status,
        "evidence": cause.evidence,
        "experiments": [asdict(experiment) for experiment in cause.experiments],
        "sites": [site._asdict() for site in cause.sites],
    }


def fix_document(fix: Fix) -> dict[str, Any]:
    """A fix, or what was tried as one."""
    variables = fix.environment
    return {
        "id": fix.identifier,
        "title": fix.title,
        "code": fix.code,
        "env": None if variables is None else [{"name": name, "value": value} for name, value in variables],
        "verified": fix.verified,
        "runs": fix.runs,
        "step_time_ratio": fix.step_time_ratio,
    }


# One entry of the terminal report, before it is laid out.


class Weight(IntEnum):
    """How much an entry matters; where the report gets too long, the highest numbers go first."""

    CORE = 0
    MAIN = 1
    CONSEQUENCE = 2
    NOTE = 3
    ITEM = 4
    EXTRA = 5


class Tone(StrEnum):
    """How an entry looks; the values are rich styles."""

    PLAIN = ""
    CODE = "cyan"
    SAME = "bold green"
    DIFFERENT = "bold red"
    INCONCLUSIVE = "bold yellow"


@dataclass(frozen=True)
class Entry:
    """A labelled paragraph. The text is as foreign as its sources are; the layout makes it safe to print."""

    text: str
    label: str = ""
    """Stands in the left column; empty for an entry that goes on with the one above."""
    weight: Weight = Weight.MAIN
    tone: Tone = Tone.PLAIN
    lines: int = 3
    """How many lines it may take; the rest is cut."""
    full_width: bool = False
    """Starts at the left edge instead of in the right column."""
    indent: int = 0


# How places in the user's code and folders are written.

LONGEST_PATH = 150
LONGEST_NAME = 60


def path_text(path: str) -> str:
    """Write a path relative to the current folder if it is below it; of a very long one the end is kept."""
    try:
        shown = str(PurePath(path).relative_to(os.getcwd()))
    except (ValueError, OSError):
        shown = path
    return shown if len(shown) <= LONGEST_PATH else f"...{shown[3 - LONGEST_PATH :]}"


def line_text(frame: Frame) -> str:
    """Write `file:line`."""
    return f"{path_text(frame.file)}:{frame.line}"


def frame_text(frame: Frame) -> str:
    """Write `file:line in function`."""
    if not frame.function or frame.function == "<module>":
        return line_text(frame)
    name = frame.function
    return f"{line_text(frame)} in {name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + '...'}"


_PHASES = {
    "init": "before the first forward pass",
    "data": "while loading data",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "communication": "in the communication between processes",
    "checkpoint": "at a checkpoint",
}

_KINDS = {
    Kind.STRUCTURE: "the runs did not do the same here: one has records that another lacks, or an op took another tensor",
    Kind.RNG: "a random op ran with different states of its random generator",
    Kind.DATA: "a value that came from outside the framework differs, such as a batch, a file or an array",
    Kind.ARGUMENT: "a plain value passed to the op differs, such as a number, an index, a shape or a flag",
    Kind.ORDER: "the same values came in a different order",
    Kind.UNINITIALIZED: "the op read memory that nobody had written to, so it got whatever was there",
    Kind.MUTATION: (
        "a tensor was changed between two ops by something else, such as a NumPy view, another thread or process, or an extension"
    ),
    Kind.OP: "the op itself gave different outputs from equal inputs and arguments",
}

_UNPROVEN_OP = "the op gave different outputs; its arguments, and where its inputs came from, are equal"

_STOPS = {
    "steps": "ended by --steps",
    "fail-fast": "ended by --fail-fast",
    "time-limit": "stopped because it took longer than it was given",
    "max-disk": "recording ended at the limit of --max-disk",
    "disk-full": "recording ended because the disk was full",
    "interrupt": "interrupted",
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


def kind_sentence(first: Divergence, level: str) -> str:
    """Explain the kind of a divergence in one sentence."""
    kind = first.kind
    if kind is Kind.OP and first.inputs_equal is None:
        return f"{kind}: {_UNPROVEN_OP}"
    if kind is not None:
        return f"{kind}: {_KINDS[kind]}"
    if level != Level.OP:
        return f"not known: recording at level {level} does not show it; rerun with --level op"
    return "not established: the outputs of this op differ, and it is not known what made them differ"


def dead_phrase(count: int) -> str:
    """Say how many dead differences there are."""
    return f"{counted(count, 'value')} that reached nothing kept or shown {'differs' if count == 1 else 'differ'}"


def stop_phrase(stopped_by: str) -> str:
    """Say what ended a run."""
    return _STOPS.get(stopped_by, f"stopped by {stopped_by}")


def headline(comparison: Comparison) -> str:
    """Write the first line of the report: the verdict and what it rests on."""
    match comparison.verdict:
        case "same":
            return _same_headline(comparison)
        case "different":
            return f"Different: {_difference(comparison)}"
        case _:
            return _inconclusive_headline(comparison)


def _same_headline(comparison: Comparison) -> str:
    recorded = comparison.recorded
    verb = "was" if recorded.records == 1 else "were"
    steps = f" in {counted(recorded.steps, 'step')}" if recorded.steps else ""
    if comparison.missing is not None:
        return f"Same: {counted(recorded.records, 'record')}{steps} of the resumed run {verb} bit-identical to those of the full run"
    runs = counted(len(comparison.runs), "run")
    return f"Same: {counted(recorded.records, 'record')}{steps} {verb} bit-identical in {runs}"


def _difference(comparison: Comparison) -> str:
    first = comparison.first_divergence
    if first is not None:
        return f"{_departure(comparison, first)} {_when(comparison, first)}"
    statuses = [run.exit_status for run in comparison.runs]
    if len(set(statuses)) > 1:
        return f"the runs ended with {listed(['an unknown status' if one is None else exit_phrase(one) for one in statuses])}"
    if comparison.dead_differences:
        return dead_phrase(comparison.dead_differences)
    return "the runs are not bit-identical"


def _departure(comparison: Comparison, first: Divergence) -> str:
    if comparison.missing is not None:
        return "run 2, which was resumed, departs from run 1, the full one,"
    if first.records_of > 0 or len(comparison.runs) == 2:
        return f"run {max(first.records_of, 1) + 1} departs from run 1"
    return "the runs depart from each other"


def _when(comparison: Comparison, first: Divergence) -> str:
    if not comparison.recorded.steps_by and first.phase == "init":
        # Nothing told where initialisation ends: it may as well be the middle of a loop.
        return f"in {first.op}"
    phase = _PHASES.get(first.phase)
    return f"at step {first.step}, {phase}" if phase else f"at step {first.step}"


def _inconclusive_headline(comparison: Comparison) -> str:
    messages = [prose(trouble.message) for trouble in comparison.trouble]
    if len(messages) == 1:
        return f"Inconclusive: {messages[0]}"
    return f"Inconclusive, for {len(messages)} reasons" if messages else "Inconclusive: the runs could not be compared"
