"""Further notes besides the first divergence: leftover files, the stack, limits of the verdict."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from determinism.comparison.divergence import DeadDifference, Fix
from determinism.comparison.result import Comparison, FileChange, Leftover, RunSummary
from determinism.environment import EnvironmentDifference, Part, part_of, stack_differences
from determinism.errors import exit_phrase, first_few
from determinism.report.entries import (
    Entry,
    counted,
    dead_phrase,
    entries_under,
    line_text,
    listed,
    one_paragraph,
    path_text,
    stop_phrase,
)
from determinism.types import Level, Verdict

# Says which files changed between the starts of the runs, and how to start all runs from the same files.

MOST_FILES = 3


def leftover_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say which files a run read that had changed during an earlier one; if the runs differ, also what to do."""
    kept = [leftover for leftover in comparison.leftovers if leftover.cache is not None]
    others = [leftover for leftover in comparison.leftovers if leftover.cache is None]
    alike = [(change, [leftover for leftover in others if leftover.change is change]) for change in FileChange]
    is_first = True
    if kept:
        yield Entry(_of_caches(kept), "leftovers")
        is_first = False
    for change, leftovers in alike:
        if not leftovers:
            continue
        label = "leftovers" if is_first else ""
        what = _what(change, leftovers)
        if comparison.verdict is not Verdict.DIFFERENT:
            yield Entry(what, label)
        else:
            lead = "The runs did not start from the same files: " if is_first else "Also, "
            yield Entry(f"{lead}{what}.", label)
            yield Entry(f"{_REMEDIES[change](leftovers)}.")
        is_first = False


def _of_caches(kept: Sequence[Leftover]) -> str:
    """Say in one line that compiled code was taken from a cache: it has hundreds of files with long names."""
    files, first = _files(kept), kept[0]
    owners = listed(list(dict.fromkeys(str(leftover.cache) for leftover in kept)))
    return (
        f"run {first.read_in} read {counted(len(files), 'file')} of the compile cache of {owners} that run "
        f"{first.changed_in} had changed"
    )


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
    """Return files and folders, without those inside a listed folder."""
    folders = {leftover.file for leftover in leftovers if leftover.is_folder}
    files = dict.fromkeys(leftover.file for leftover in leftovers)
    return [file for file in files if folders.isdisjoint(map(str, PurePath(file).parents))]


def _named(files: list[str]) -> str:
    shown = [path_text(file) for file in files[:MOST_FILES]]
    more = len(files) - MOST_FILES
    return f"{', '.join(shown)} and {counted(more, 'more file')}" if more > 0 else listed(shown)


def _removal(leftovers: Sequence[Leftover]) -> str:
    folders, files = {leftover.file for leftover in leftovers if leftover.is_folder}, _files(leftovers)
    option = "-f" if folders.isdisjoint(files[:MOST_FILES]) else "-rf"
    removal = shlex.join(["rm", option, *map(path_text, files[:MOST_FILES])])
    more = " ..." if len(files) > MOST_FILES else ""
    remedy = f"--before {shlex.quote(removal + more)}"
    return f"To start them from the same files: {remedy}{', or --fresh-copy' if _all_copied(leftovers) else ''}"


def _restoring(leftovers: Sequence[Leftover]) -> str:
    return f"To start them from the same files: {_original(leftovers)}"


def _repeating(leftovers: Sequence[Leftover]) -> str:
    return (
        f"If something else changed {'it' if len(_files(leftovers)) == 1 else 'them'}, run the check again. If the program "
        f"did: {_original(leftovers)}"
    )


def _original(leftovers: Sequence[Leftover]) -> str:
    """Say how each run gets the original files; nothing here removes a file, since it may be the user's own."""
    if _all_copied(leftovers):
        return "--fresh-copy"
    return "--before with a command that restores a copy of the original"


def _all_copied(leftovers: Sequence[Leftover]) -> bool:
    return all(leftover.is_copied for leftover in leftovers)


def with_command_and_files(fix: Fix, comparison: Comparison) -> Fix:
    """Complete a fix with the command that was checked; one for leftover files, with how to change the program first."""
    code = fix.code
    if code is None or not code.endswith(_PLACEHOLDER):
        return fix
    if comparison.runs and comparison.runs[0].command:
        code = f"{code.removesuffix(_PLACEHOLDER)}{shlex.join(comparison.runs[0].command)}"
    first = _program_change([one for one in comparison.leftovers if one.cache is None])
    if first is None:
        return replace(fix, code=code)
    # The rest of the title, such as that other causes are left, follows the first clause.
    title = fix.title.replace(fix.title.partition(";")[0], first, 1)
    way = "What was verified" if fix.verified else "Or"
    return replace(fix, title=title, code=f"# {way}: each run in a fresh copy of the folder.\n{code}")


_PLACEHOLDER = "COMMAND"
"""Placeholder at the end of a fix for the command of the program, which the diagnosis does not know."""


def _program_change(leftovers: Sequence[Leftover]) -> str | None:
    """Say how to change a program that reads what it wrote in an earlier run; None if it was not seen to write."""
    changes = {one.change for one in leftovers}
    if not changes or FileChange.UNSEEN in changes:
        return None
    files = _files(leftovers)
    named, are = _named(files), "it" if len(files) == 1 else "them"
    site = next((one.site for one in leftovers if one.site is not None), None)
    reads = f"{line_text(site)} reads" if site is not None else "it reads"
    if changes == {FileChange.CREATED}:
        empty = ", or start each run in an empty folder" if _all_copied(leftovers) else ""
        return f"Delete {named} before each run{empty}: {reads} what the previous run left there"
    return f"Have the program write somewhere other than {named}: {reads} {are}, and gets what the previous run wrote"


_REMEDIES = {FileChange.CREATED: _removal, FileChange.OVERWRITTEN: _restoring, FileChange.UNSEEN: _repeating}


# Describes the differences between the environments of two runs.

MOST_DIFFERENCES = 6
_SETS = "instruction sets"


def stack_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say what differs between the runs' hardware, threads, libraries and settings, the most influential first."""
    found = [difference_text(one, comparison) for one in stack_differences(comparison.environment)]
    yield from entries_under("stack", found, MOST_DIFFERENCES, "difference")


def other_differences(comparison: Comparison) -> list[EnvironmentDifference]:
    """Return the other differences, which have no known effect on numbers."""
    return [difference for difference in comparison.environment if part_of(difference[0]) is Part.OTHER]


def difference_text(difference: EnvironmentDifference, comparison: Comparison) -> str:
    """Describe one difference with both values."""
    name, first, second = difference
    run = comparison.environment_run
    if name == _SETS and "not set" not in (first, second):
        alone = [sorted(set(one.split()) - set(other.split())) for one, other in ((first, second), (second, first))]
        parts = [
            f"only run {number} has {' '.join(sets)}" for number, sets in zip((1, run), alone, strict=True) if sets
        ]
        return f"{name}: {', '.join(parts)}"
    return f"{name} was {first or '(empty)'} in run 1, {second or '(empty)'} in run {run}"


MOST_PROCESSES = 3
MOST_DEAD = 3
MOST_BLIND_SPOTS = 5
MOST_ENVIRONMENT = 5
MOST_TRACES = 4
_NO_STEPS = (
    "no steps were counted, because no optimizer stepped and no batch was loaded; to count them, call "
    "`determinism.step()` at the end of each iteration"
)


def limiting_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say what limits the verdict."""
    is_different = comparison.verdict is Verdict.DIFFERENT
    yield from _trouble_entries(comparison)
    yield from _command_entries(comparison)
    yield from _run_entries(comparison)
    if not is_different:
        yield from _extra_run_entries(comparison)
        yield from leftover_entries(comparison)
        yield from _blind_spot_entries(comparison)
        yield from _level_entries(comparison)
    if comparison.verdict is Verdict.SAME:
        yield from _dead_entries(comparison)
        yield from _printed_entries(comparison)
    yield from _open_setting_entries(comparison)


def detail_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say what else was observed."""
    if comparison.verdict is Verdict.DIFFERENT:
        yield from _extra_run_entries(comparison)
        yield from _blind_spot_entries(comparison)
    yield from _step_entries(comparison)
    yield from _recorder_entries(comparison)
    yield from _process_entries(comparison)
    yield from _dead_line_entries(comparison)
    yield from _environment_entries(comparison)
    yield from _trace_entries(comparison)


def _trouble_entries(comparison: Comparison) -> Iterator[Entry]:
    messages = [one_paragraph(trouble.message) for trouble in comparison.trouble]
    if comparison.verdict is Verdict.INCONCLUSIVE and len(messages) == 1:
        # The headline already says it.
        return
    yield from entries_under("trouble", messages)


def _run_entries(comparison: Comparison) -> Iterator[Entry]:
    numbers: dict[str, list[str]] = {}
    # The runs of a window always end with it, so that is not reported.
    runs = comparison.runs if comparison.narrowing is None or not comparison.narrowing.is_pinned else ()
    for number, run in enumerate(runs, start=1):
        ending = _ending(run)
        if ending:
            numbers.setdefault(ending, []).append(str(number))
    texts = (f"{'run' if len(which) == 1 else 'runs'} {listed(which)}: {ending}" for ending, which in numbers.items())
    yield from entries_under("runs", texts)


def _command_entries(comparison: Comparison) -> Iterator[Entry]:
    """List different commands: stored runs may be of different programs, which explains every difference."""
    if comparison.missing is not None or comparison.batch is not None:
        return
    commands = list(dict.fromkeys(shlex.join(run.command) for run in comparison.runs if run.command))
    if len(commands) < 2:
        return
    yield Entry("the runs have different commands", "commands")
    for number, run in enumerate(comparison.runs, start=1):
        yield Entry(f"run {number}: {shlex.join(run.command)}")


def _ending(run: RunSummary) -> str | None:
    phrases = []
    if run.stopped_by is not None:
        phrases.append(stop_phrase(run.stopped_by))
    if run.exit_status and (run.stopped_by is None or run.exit_status > 0):
        phrases.append(exit_phrase(run.exit_status))
    return ", ".join(phrases) or None


def _extra_run_entries(comparison: Comparison) -> Iterator[Entry]:
    if not comparison.racy:
        return
    because = f"the result may depend on timing or chance ({listed(comparison.racy)}), and may differ next time"
    if comparison.extra_runs:
        text = f"{counted(comparison.extra_runs, 'run was', 'runs were')} made beyond the first two: {because}"
        if comparison.verdict is Verdict.SAME:
            text += "; tensors are compared, not what the program prints or writes"
        yield Entry(text, "extra runs")
    elif comparison.verdict is Verdict.SAME:
        yield Entry(f"{because}; -n 5 makes five runs", "timing")


def _step_entries(comparison: Comparison) -> Iterator[Entry]:
    recorded = comparison.recorded
    if recorded.steps_by == "batches":
        yield Entry("steps are batches, because no optimizer stepped", "steps")
    elif not recorded.steps_by and recorded.records and not any(_has_failed(run) for run in comparison.runs):
        yield Entry(_NO_STEPS, "steps")


def _recorder_entries(comparison: Comparison) -> Iterator[Entry]:
    for name, reason in comparison.recorded.recorders:
        yield Entry(f"the {name} recorder recorded PyTorch" + (f": {reason}" if reason else ""), "recorder")


def _level_entries(comparison: Comparison) -> Iterator[Entry]:
    if comparison.level != Level.OP and comparison.verdict is Verdict.SAME:
        yield Entry(f"recorded at level {comparison.level}, which does not record single ops", "level")


def _has_failed(run: RunSummary) -> bool:
    """Whether a run may have ended before its first step."""
    return run.exit_status not in (0, None) or run.stopped_by is not None


def _process_entries(comparison: Comparison) -> Iterator[Entry]:
    others = [
        divergence
        for divergence in comparison.divergences
        if divergence.received_from is None and divergence != comparison.first_divergence
    ]
    if not others:
        return
    verb = "differs" if len(others) == 1 else "differ"
    has_threads = any(other.thread is not None for other in others)
    words = (
        ("other process or thread", "other processes or threads")
        if has_threads
        else ("other process", "other processes")
    )
    yield Entry(f"{counted(len(others), *words)} {verb} too", "processes")
    for other in others[:MOST_PROCESSES]:
        place = f" at {line_text(other.site)}" if other.site else ""
        who = other.process if other.thread is None else f"thread {other.thread} of {other.process}"
        text = f"{who}: step {other.step}, {other.phase}, {other.op}{place}"
        yield Entry(f"{text} ({other.kind})" if other.kind else text)


def _dead_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say that values that reached nothing differ; a user who asks whether runs are the same may mean these, too."""
    count = comparison.dead_differences
    if not count:
        return
    text = dead_phrase(count)
    if comparison.verdict is Verdict.SAME:
        site = next((dead.site for dead in comparison.dead_first if dead.site is not None), None)
        first = f"{'' if count == 1 else ', first'} at {line_text(site)}" if site is not None else ""
        text += f"{first}; {'it counts' if count == 1 else 'they count'} with --strict only"
    elif comparison.verdict is not Verdict.DIFFERENT or comparison.first_divergence:
        text += f"; {'it does' if count == 1 else 'they do'} not count"
    yield Entry(text, "dead values")


def _printed_entries(comparison: Comparison) -> Iterator[Entry]:
    printed = comparison.printed
    if printed is None:
        return
    one, other = printed.runs
    yield Entry(f"no tensor differs, but run {one} printed: {one_paragraph(printed.first)}", "printed")
    yield Entry(f"and run {other}: {one_paragraph(printed.second)}")
    yield Entry("What the program computes without tensors is not compared.")


def _dead_line_entries(comparison: Comparison) -> Iterator[Entry]:
    if comparison.verdict is not Verdict.SAME:
        yield from _dead_entries(comparison)
    lines = Counter(_dead_text(dead) for dead in comparison.dead_first[:MOST_DEAD])
    for number, (text, times) in enumerate(lines.items()):
        label = "dead values" if comparison.verdict is Verdict.SAME and not number else ""
        yield Entry(text if times == 1 else f"{text}, {times} times", label)


def _dead_text(dead: DeadDifference) -> str:
    place = f" at {line_text(dead.site)}" if dead.site else ""
    return f"step {dead.step}, {dead.phase}, {dead.op}{place}"


def _blind_spot_entries(comparison: Comparison) -> Iterator[Entry]:
    spots = sorted(comparison.recorded.blind_spots, key=lambda spot: -spot.count)
    texts = []
    for spot in spots:
        times = "once" if spot.count == 1 else counted(spot.count, "time")
        share = comparison.recorded.share(spot)
        part = "" if share is None else f" ({share:.1%} of the ops)"
        texts.append(f"{one_paragraph(spot.what)}, {times}{part}: {one_paragraph(spot.reason)}")
    yield from entries_under("blind spots", texts, MOST_BLIND_SPOTS, "blind spot")


def _open_setting_entries(comparison: Comparison) -> Iterator[Entry]:
    found = [f"{name} {one_paragraph(why)}" for name, why in comparison.open_settings]
    yield from entries_under("not set", found, MOST_ENVIRONMENT, "setting")


def _environment_entries(comparison: Comparison) -> Iterator[Entry]:
    found = [difference_text(one, comparison) for one in other_differences(comparison)]
    yield from entries_under("environment", found, MOST_ENVIRONMENT, "difference")


def _trace_entries(comparison: Comparison) -> Iterator[Entry]:
    traces = [run.trace for run in comparison.runs if run.trace is not None]
    if not traces:
        return
    folders = {os.path.dirname(trace) for trace in traces}
    names = [os.path.basename(trace) for trace in traces]
    if len(traces) > 1 and len(folders) == 1 and all(folders) and all(names):
        shown, where = names, f" in {path_text(folders.pop())}"
    else:
        shown, where = [path_text(trace) for trace in traces], ""
    text = first_few(shown, MOST_TRACES) if len(shown) > MOST_TRACES else listed(shown)
    yield Entry(f"{text}{where}", "traces")
