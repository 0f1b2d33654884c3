"""Says which files one run left to another."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from determinism.comparison.result import Comparison, Leftover
from determinism.report.entry import Entry, Weight
from determinism.report.places import path_text
from determinism.report.wording import counted, listed
from determinism.types import Verdict

MOST_FILES = 3


def leftover_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say which files a run read that an earlier one had changed; where the runs differ, also what to do."""
    if not comparison.leftovers:
        return
    files = list(dict.fromkeys(leftover.file for leftover in comparison.leftovers))
    first = comparison.leftovers[0]
    pronoun = "it" if len(files) == 1 else "them"
    what = (
        f"run {first.read_in} read {_named(files)}, which run {first.changed_in} had left: {_verb(files)} changed while "
        f"that one ran, and run {first.read_in} had not written to {pronoun} before"
    )
    if comparison.verdict is not Verdict.DIFFERENT:
        yield Entry(what, "leftovers", Weight.NOTE, lines=4)
        return
    yield Entry(f"The runs did not start alike: {what}.", "leftovers", Weight.CORE, lines=5)
    yield Entry(f"To let them start alike: {_remedy(files, comparison.leftovers)}.", weight=Weight.CORE, lines=4)


def _named(files: list[str]) -> str:
    shown = [path_text(file) for file in files[:MOST_FILES]]
    more = len(files) - MOST_FILES
    return f"{', '.join(shown)} and {counted(more, 'more file')}" if more > 0 else listed(shown)


def _verb(files: list[str]) -> str:
    return "it was" if len(files) == 1 else "they were"


def _remedy(files: list[str], leftovers: list[Leftover]) -> str:
    removal = shlex.join(["rm", "-f", *map(path_text, files[:MOST_FILES])])
    more = " ..." if len(files) > MOST_FILES else ""
    remedy = f"--before {shlex.quote(removal + more)}"
    return f"{remedy}, or --fresh-copy" if all(leftover.is_copied for leftover in leftovers) else remedy
