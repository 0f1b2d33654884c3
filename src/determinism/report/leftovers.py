"""Says which files changed between the starts of the runs, and how to let the runs start alike."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from determinism.comparison.result import Comparison, FileChange, Leftover
from determinism.report.entry import Entry, Weight
from determinism.report.places import path_text
from determinism.report.wording import counted, listed
from determinism.types import Verdict

MOST_FILES = 3


def leftover_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say which files a run read that had changed during an earlier one; where the runs differ, also what to do."""
    alike = [
        (change, [leftover for leftover in comparison.leftovers if leftover.change is change]) for change in FileChange
    ]
    is_first = True
    for change, leftovers in alike:
        if not leftovers:
            continue
        label = "leftovers" if is_first else ""
        what = _what(change, leftovers)
        if comparison.verdict is not Verdict.DIFFERENT:
            yield Entry(what, label, Weight.NOTE, lines=4)
        else:
            lead = "The runs did not start alike: " if is_first else "Also, "
            yield Entry(f"{lead}{what}.", label, Weight.CORE, lines=5)
            yield Entry(f"{_REMEDIES[change](leftovers)}.", weight=Weight.CORE, lines=4)
        is_first = False


def _what(change: FileChange, leftovers: Sequence[Leftover]) -> str:
    files, first = _files(leftovers), leftovers[0]
    one = len(files) == 1
    read = f"run {first.read_in} read {_named(files)}, which"
    if change is FileChange.UNSEEN:
        return (
            f"{read} changed during run {first.changed_in}, perhaps by another process: the program was not seen to write to "
            f"{'it' if one else 'them'}"
        )
    if change is FileChange.OVERWRITTEN:
        return f"{read} run {first.changed_in} had overwritten: {'it' if one else 'they'} existed before that run"
    return (
        f"{read} run {first.changed_in} had left: {'it was' if one else 'they were'} created by that run, and run "
        f"{first.read_in} had not written to {'it' if one else 'them'} before"
    )


def _files(leftovers: Sequence[Leftover]) -> list[str]:
    return list(dict.fromkeys(leftover.file for leftover in leftovers))


def _named(files: list[str]) -> str:
    shown = [path_text(file) for file in files[:MOST_FILES]]
    more = len(files) - MOST_FILES
    return f"{', '.join(shown)} and {counted(more, 'more file')}" if more > 0 else listed(shown)


def _removal(leftovers: Sequence[Leftover]) -> str:
    files = _files(leftovers)
    removal = shlex.join(["rm", "-f", *map(path_text, files[:MOST_FILES])])
    more = " ..." if len(files) > MOST_FILES else ""
    remedy = f"--before {shlex.quote(removal + more)}"
    return f"To let them start alike: {remedy}{', or --fresh-copy' if _all_copied(leftovers) else ''}"


def _restoring(leftovers: Sequence[Leftover]) -> str:
    return f"To let them start alike: {_original(leftovers)}"


def _repeating(leftovers: Sequence[Leftover]) -> str:
    return (
        f"If something else changed {'it' if len(_files(leftovers)) == 1 else 'them'}, run the check again. If the program "
        f"did: {_original(leftovers)}"
    )


def _original(leftovers: Sequence[Leftover]) -> str:
    """How each run gets files as they were; nothing here removes a file, since it may be the user's own."""
    if _all_copied(leftovers):
        return "--fresh-copy"
    return "--before with a command that puts back a copy of the original"


def _all_copied(leftovers: Sequence[Leftover]) -> bool:
    return all(leftover.is_copied for leftover in leftovers)


_REMEDIES = {FileChange.CREATED: _removal, FileChange.OVERWRITTEN: _restoring, FileChange.UNSEEN: _repeating}
