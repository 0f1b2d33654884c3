"""Entries: the sentences and phrases from which every form of the report is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from determinism.comparison.result import Cause, Divergence, Fix
from determinism.trace.schema import STEP_OP, Frame
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
        "patch": fix.patch,
        "env": None if variables is None else [{"name": name, "value": value} for name, value in variables],
        "verified": fix.verified,
        "runs": fix.runs,
        "steps": fix.steps,
        "step_time_ratio": fix.step_time_ratio,
        "side_effect": fix.side_effect,
    }


# One entry of a report, before it is laid out.


class Section(StrEnum):
    """What part of the report an entry belongs to, in the order of reading."""

    CAUSE = "cause"
    FIX = "fix"
    PLACE = "place"
    SEARCH = "search"
    NOTES = "notes"
    DETAILS = "details"
    """What is shown only when asked for."""


@dataclass(frozen=True)
class Entry:
    """A labelled paragraph. The text is as foreign as its sources are; the layout makes it safe to print."""

    text: str
    label: str = ""
    """Stands in the left column; empty for an entry that continues the one above."""
    section: Section = Section.DETAILS
    is_code: bool = False
    """Whether the text is one line of code, of a diff or of a command."""


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


_KINDS = {
    Kind.STRUCTURE: "the runs executed different operations here: one has records that another lacks, or an op read "
    "a different tensor",
    Kind.RNG: "a random op ran with different states of its random generator",
    Kind.DATA: "a value that came from outside the framework differs, such as a batch, a file or an array",
    Kind.ARGUMENT: "a plain value passed to the op differs, such as a number, an index, a shape or a flag",
    Kind.ORDER: "the same values arrived in a different order",
    Kind.UNINITIALIZED: "the op read memory that nothing had written, so it got whatever was there",
    Kind.MUTATION: (
        "a tensor was changed between two ops by something else, such as a NumPy view, another thread or process, or an extension"
    ),
    Kind.OP: "the op itself gave different outputs from equal inputs and arguments",
}

_UNPROVEN_OP = "the op gave different outputs from equal arguments, and the records that its inputs come from are equal"

_STOPS = {
    "steps": "ended by --steps",
    "fail-fast": "ended by --fail-fast",
    "time-limit": "stopped at its time limit",
    "max-disk": "recording ended at the limit of --max-disk",
    "disk-full": "recording ended because the disk was full",
    "interrupt": "interrupted",
}


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Write a number with its noun, such as `1,234 records`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(items: Sequence[str]) -> str:
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
    if first.op == STEP_OP and level == Level.OP:
        return f"not known: {first.detail}"
    if level != Level.OP:
        return f"not known: recording at level {level} does not show it; rerun with --level op"
    return "not established: the outputs of this op differ, and it is not known why"


def dead_phrase(count: int) -> str:
    """Say how many dead differences there are."""
    return f"{counted(count, 'value')} that reached nothing kept or shown {'differs' if count == 1 else 'differ'}"


def stop_phrase(stopped_by: str) -> str:
    """Say what ended a run."""
    return _STOPS.get(stopped_by, f"stopped by {stopped_by}")
