"""Compares the traces of two or more runs and comes to a verdict."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from determinism.comparison.causality import Explained, Found
from determinism.comparison.fingerprints import ordered, stream_of, unordered
from determinism.comparison.flow import Pair
from determinism.comparison.lockstep import StepCounts
from determinism.comparison.ordered import ProcessComparison, compare_processes, up_to_common_step
from determinism.comparison.partners import DigestSearch, pair_siblings
from determinism.comparison.result import (
    MOST_ENTRIES,
    BlindSpot,
    Comparison,
    Course,
    Divergence,
    Loss,
    Recorded,
    RunSummary,
    Trouble,
)
from determinism.comparison.unordered import Surroundings, UnorderedComparison, compare_unordered
from determinism.comparison.values import with_values
from determinism.errors import UsageError
from determinism.exit_status import exit_phrase
from determinism.trace.opening import open_trace, part_names
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.schema import END_OP, STEP_OP, Meaning, Table
from determinism.types import Kind, Level, Stream, Verdict

# Whether runs were recorded alike, so that a difference between their traces is one between the runs.


def require_comparable(traces: Sequence[Trace]) -> None:
    """Refuse runs that were recorded in different ways.

    Args:
        traces: Two or more runs.

    Raises:
        UsageError: Their parts, levels, steps or digests differ.
        TraceError: A trace cannot be read.
    """
    _check_parts(traces)
    _check_levels(traces)
    _check_steps(traces)
    _check_digests(traces)


def _check_parts(traces: Sequence[Trace]) -> None:
    """Runs that were recorded in parts have the same ones: a part that somebody forgot is no difference between runs."""
    parts = [part_names(trace.folder) for trace in traces]
    for number, names in enumerate(parts[1:], start=2):
        if names != parts[0]:
            texts = [f"run {at} has {_few(found)}" for at, found in ((1, parts[0]), (number, names))]
            raise UsageError(
                "parts-differ",
                f"The runs were recorded in different parts: {' and '.join(texts)}. So processes of one run have no partner in "
                "the other. Record both with the same names for --part, and compare when all parts are there.",
            )


def _few(names: Sequence[str]) -> str:
    """The parts of a run in words; the first ones where they are many."""
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{len(names)} part{'' if len(names) == 1 else 's'} ({shown})" if names else "no parts"


def _check_levels(traces: Sequence[Trace]) -> None:
    levels = [sorted({str(p.description.get("level")) for p in trace.processes}) for trace in traces]
    for level in levels[1:]:
        if level and levels[0] and level != levels[0]:
            raise UsageError(
                "levels-differ",
                f"The runs were recorded at different levels ({', '.join(levels[0])} and {', '.join(level)}), so their "
                "records cannot be compared. Record both with the same --level.",
            )


def _check_steps(traces: Sequence[Trace]) -> None:
    asked = [trace.manifest.get("steps") for trace in traces]
    if len(set(asked)) > 1:
        texts = ["all steps" if steps is None else f"--steps {steps}" for steps in asked]
        raise UsageError(
            "steps-differ",
            f"The runs were recorded for different numbers of steps ({', '.join(texts)}), so one would seem to lack what it "
            "was told to leave out. Record both with the same --steps.",
        )


def _check_digests(traces: Sequence[Trace]) -> None:
    """Each sort of device has one digest in all runs: the same bytes have others by another algorithm."""
    known: dict[str, str] = {}
    for trace in traces:
        for process in trace.processes:
            for device, algorithm in (process.description.get("device_digests") or {}).items():
                if known.setdefault(device, algorithm) != algorithm:
                    raise UsageError(
                        "digests-differ",
                        f"Tensors on {device} were digested in two ways in these runs ({known[device]} and {algorithm}), so that "
                        "equal tensors would seem different. Record both with the same version, and with Triton in both or in "
                        "neither.",
                    )


# What exit statuses and cut recordings add to what the tensors say.

_NOT_OF_THE_PROGRAM = frozenset({"disk-full", "fail-fast", "interrupted", "run-unfinished", "time-limit"})
"""What makes a program's exit status say nothing about the program itself."""
INTERRUPT = "interrupt"
"""What a manifest says has stopped a run that the user ended."""
FAIL_FAST = "fail-fast"
"""What a manifest says has stopped a run that had shown a difference."""
TIME_LIMIT = "time-limit"
"""What a manifest says has stopped a run, such as one of an experiment, that took longer than it was given."""
_STOPPED_BY_US = (FAIL_FAST, TIME_LIMIT)


def compare_as_far_as_recorded(first: ProcessTrace, second: ProcessTrace, traces: Sequence[Trace]) -> ProcessComparison:
    """Compare two processes; that a recording was cut off is no difference between the runs.

    Raises:
        TraceError: A trace is damaged.
    """
    if any(trace.manifest.get("stopped_by") in _STOPPED_BY_US for trace in traces):
        whole = up_to_common_step(first, second)
        return compare_processes(*whole) if whole is not None else ProcessComparison(first.key)
    result = compare_processes(first, second)
    if not _is_structure(result.divergence):
        return result
    # Counting reads to the end, and only there it is known whether anything is missing.
    counts = [_count(process) for process in (first, second)]
    cut = [count for count, trace in zip(counts, traces, strict=True) if cut_reasons(trace)]
    if not cut:
        return result
    limit = min(cut)
    first, second = first.until(limit), second.until(limit)
    result = compare_processes(first, second)
    if result.divergence is not None and _is_structure(result.divergence):
        last = min(_last_step(process) for process in (first, second))
        if result.divergence.step >= last:
            return ProcessComparison(first.key)
    return result


def _is_structure(divergence: Divergence | None) -> bool:
    return divergence is not None and divergence.kind is Kind.STRUCTURE


def _count(process: ProcessTrace) -> int:
    """How many records there are, without the one that says that the process ended."""
    ops = process.names.texts(Table.OP)
    count, last = 0, -1
    for chunk in process.chunks():
        count, last = count + chunk.rows, int(chunk.columns["op"][-1])
    return count - (last >= 0 and ops[last] == END_OP)


def _last_step(process: ProcessTrace) -> int:
    return max((int(chunk.columns["step"][-1]) for chunk in process.chunks()), default=0)


def cut_reasons(trace: Trace) -> list[str]:
    """Why records of a run are missing: identifiers of troubles; known when the run was read."""
    found = [process.stopped_by for process in trace.processes if process.stopped_by is not None]
    if any(process.truncated for process in trace.processes):
        found.append("trace-truncated")
    if trace.missing_processes:
        found.append("process-missing")
    if trace.manifest.get("stopped_by") == INTERRUPT:
        found.append("interrupted")
    elif trace.manifest.get("stopped_by") in _STOPPED_BY_US:
        found.append(str(trace.manifest["stopped_by"]))
    elif not trace.manifest.get("complete"):
        found.append("run-unfinished")
    return found


def conclude(comparison: Comparison, traces: Sequence[Trace], *, allow_failure: bool) -> Comparison:
    """Bring exit statuses, cut recordings and empty ones into the verdict."""
    if comparison.verdict is Verdict.DIFFERENT:
        return comparison
    reasons = [cut_reasons(trace) for trace in traces]
    statuses = [
        None if _NOT_OF_THE_PROGRAM.intersection(found) else run.exit_status
        for run, found in zip(comparison.runs, reasons, strict=True)
    ]
    known = {status for status in statuses if status is not None}
    if len(known) > 1 and traces[0].processes:
        ending = _ended_differently(traces, statuses)
        return replace(comparison, verdict=Verdict.DIFFERENT, first_divergence=ending)
    trouble = [*comparison.trouble, *cut_troubles(traces, reasons)]
    if not trouble and not all(_holds_content(trace) for trace in traces):
        trouble.append(Trouble("nothing-recorded", _nothing_recorded(traces, comparison.level)))
    failed = next((status for status in statuses if status), None)
    if not trouble and failed is not None and not allow_failure:
        trouble.append(
            Trouble(
                "runs-failed",
                f"All runs ended with {exit_phrase(failed)}. What they recorded up to there is equal, but a program that "
                "fails shows only part of what it does. Mend it, or accept the failure with --allow-failure.",
            )
        )
    verdict = Verdict.INCONCLUSIVE if trouble else comparison.verdict
    return replace(comparison, verdict=verdict, trouble=tuple(trouble))


def cut_troubles(traces: Sequence[Trace], reasons: Sequence[list[str]]) -> Iterator[Trouble]:
    """What is said of runs whose recording was cut off.

    Args:
        traces: The runs.
        reasons: What `cut_reasons` gave for each.
    """
    for reason in sorted({reason for found in reasons for reason in found}):
        concerned = [number for number, found in enumerate(reasons, start=1) if reason in found]
        runs = f"run {concerned[0]}" if len(concerned) == 1 else f"runs {' and '.join(map(str, concerned))}"
        trace = traces[concerned[0] - 1]
        records = sum(_count(process) for process in trace.processes)
        missing = trace.missing_processes
        lacks = ", ".join(map(repr, missing[:4])) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        texts = {"runs": runs, "records": f"{records:,}", "folder": trace.folder, "missing": lacks}
        yield Trouble(reason, _CUT_MESSAGES[reason].format(**texts))


_CUT_MESSAGES = {
    "max-disk": "The trace of {runs} reached --max-disk after {records} records, and what came after was not recorded. What "
    "was recorded is equal. Give more room, or record less with --steps or --level.",
    "disk-full": "The disk was full or the limit for files was reached after {records} records of {runs}, and what came after "
    "was not recorded. What was recorded is equal. Make room, or give another place with --output.",
    "fail-fast": "{runs} was stopped by --fail-fast after {records} records, and yet what was recorded up to there is equal. "
    "Make the run again without it.",
    "interrupted": "The user interrupted {runs} after {records} records. What was recorded up to there is equal. Make the "
    "run again.",
    "run-unfinished": "How {runs} ended is not on record: the recording was ended from outside, or still goes on. The "
    "{records} records that are there are equal. Make the run again.",
    "time-limit": "{runs} took longer than it was given and was stopped after {records} records. What was recorded up to "
    "there is equal. Make the run again.",
    "process-missing": "The trace of {runs} ({folder}) lacks processes that its manifest lists ({missing}): their folders were "
    "removed or emptied, or were not copied. The {records} records that are there are equal. Copy the trace again, or make "
    "the run again.",
    "trace-truncated": "The trace of {runs} ({folder}) breaks off after {records} records although more were written: its "
    "files are cut or damaged. What can be read is equal. Copy it again, or make the run again.",
}


def _holds_content(trace: Trace) -> bool:
    """Whether anything but the ends of steps and of the process was recorded."""
    for process in trace.processes:
        empty = [n for n, name in enumerate(process.names.texts(Table.OP)) if name in (STEP_OP, END_OP)]
        if any(not np.isin(chunk.columns["op"], empty).all() for chunk in process.chunks()):
            return True
    return False


def _nothing_recorded(traces: Sequence[Trace], level: str) -> str:
    number, trace = next((n, t) for n, t in enumerate(traces, start=1) if not _holds_content(t))
    if not trace.processes:
        return f"No process of run {number} recorded anything, so there is nothing to compare."
    framework = trace.processes[0].description.get("framework")
    if level == Level.OP:
        status = trace.manifest.get("exit_status")
        ended = f" before it failed with {exit_phrase(status)}" if status else ""
        return f"Run {number} imported {framework} but ran no op of it{ended}, so there is nothing to compare."
    seen = "step ended" if level == Level.STEP else "module was called and no step ended"
    return (
        f"In run {number} no {seen}, so at --level {level} there is nothing to compare. Record with --level op, or say "
        "where steps end with determinism.step()."
    )


def _ended_differently(traces: Sequence[Trace], statuses: Sequence[int | None]) -> Divergence:
    process = traces[0].processes[0]
    records, steps = process.extent
    phrases = ["unknown" if status is None else exit_phrase(status) for status in statuses]
    texts = ", ".join(f"run {number}: {phrase}" for number, phrase in enumerate(phrases, start=1))
    return Divergence(
        Kind.STRUCTURE, process.key, max(records - 1, 0), 0, max(steps - 1, 0), "other", "determinism::exit", None, None,
        None, (), None, (), f"All recorded tensors are equal, but the runs ended differently ({texts}).",
    )  # fmt: skip


# The losses of two runs as numbers, step by step.


def losses(pairs: Iterable[tuple[ProcessTrace, ProcessTrace]]) -> list[Loss] | None:
    """The loss of each step in both runs, of the first process that has any; None if none has.

    Args:
        pairs: The same processes of both runs, the one that says most first.
    """
    for pair in pairs:
        first, second = (_by_step(process) for process in pair)
        found = [Loss(step, first.get(step), second.get(step)) for step in sorted(first.keys() | second.keys())]
        if any(loss.first is not None or loss.second is not None for loss in found):
            return _thinned(found)
    return None


def _by_step(process: ProcessTrace) -> dict[int, float | None]:
    """What the first backward of each step was started from; None where that is not known, or is no number."""
    numbers = process.numbers
    read = {
        (int(row["producer"]), int(row["output"])): float(row["value"])
        for row in numbers[(numbers["meaning"] == Meaning.READ) & (numbers["producer"] >= 0)]
    }
    found: dict[int, float | None] = {}
    for row in numbers[numbers["meaning"] != Meaning.READ]:
        step = int(row["step"])
        if step in found:
            continue
        known = float(row["value"])
        value = known if row["meaning"] == Meaning.LOSS else read.get((int(row["producer"]), int(row["output"])))
        found[step] = value if value is not None and math.isfinite(value) else None
    return found


def _thinned(found: list[Loss]) -> list[Loss]:
    """Of very many steps those whose losses are furthest apart among their neighbours, and the first and the last."""
    if len(found) <= MOST_ENTRIES:
        return found
    width = math.ceil(len(found) / (MOST_ENTRIES - 2))
    inner = [max(found[start : start + width], key=_gap) for start in range(0, len(found), width)]
    return sorted({*inner, found[0], found[-1]})


def _gap(loss: Loss) -> float:
    return -1.0 if loss.first is None or loss.second is None else abs(loss.first - loss.second)


# Ranks that a launcher started and that recorded nothing where the traces are, such as those on other machines.

_NUMBERED = re.compile(r"(?P<among>.*\b(?P<word>rank|task)-)(?P<number>\d+)")
_MOST_RANGES = 8


def missing_ranks(trace: Trace) -> Iterator[BlindSpot]:
    """One for each group of ranks that is not whole, as far as those that did record know how many there are."""
    found: dict[tuple[str, str], set[int]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for process in trace.processes:
        numbered = _NUMBERED.fullmatch(process.key)
        if numbered is None:
            continue
        group = numbered["among"], numbered["word"]
        found.setdefault(group, set()).add(int(numbered["number"]))
        sizes[group] = max(sizes.get(group, 0), process.description.get("world_size") or 0)
    for group, numbers in found.items():
        missing = sorted(set(range(sizes[group])) - numbers)
        if missing:
            word = group[1]
            reason = (
                f"{sizes[group]:,} {word}s were started, and these recorded nothing here; where they are on another machine, "
                "record there too, each machine with --part"
            )
            yield BlindSpot(
                "ranks-missing", f"{word}{'s' * (len(missing) > 1)} {_ranges(missing)}", reason, len(missing)
            )


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in ascending order as text: `1, 4 to 7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first}" if first == last else f"{first} to {last}" for first, last in ranges[:_MOST_RANGES]]
    return ", ".join(texts) + (" and more" if len(ranges) > _MOST_RANGES else "")


# What two runs ran on, and which part of that decides what numbers come out.

EnvironmentDifference = tuple[str, str, str]
"""Name and both values."""


class Part(StrEnum):
    """A part of what a run ran on, in the order of how much it decides."""

    HARDWARE = "hardware"
    THREADS = "threads"
    LIBRARIES = "libraries"
    SETTINGS = "settings"
    SYSTEM = "system"
    OTHER = "other"
    """What does not decide how numbers are computed, as far as is known."""


_ORDER = list(Part)
_BY_NAME = {
    "processor": Part.HARDWARE,
    "instruction sets": Part.HARDWARE,
    "machine": Part.HARDWARE,
    "variable CUDA_VISIBLE_DEVICES": Part.HARDWARE,
    "driver of gpus": Part.LIBRARIES,
    "processors": Part.THREADS,
    "python": Part.SYSTEM,
    "platform": Part.SYSTEM,
    "variable LD_PRELOAD": Part.SYSTEM,
    "variable GLIBC_TUNABLES": Part.SYSTEM,
    "package determinism": Part.OTHER,
}
_BY_START = (
    ("gpu", Part.HARDWARE),
    ("package ", Part.LIBRARIES),
    ("library ", Part.LIBRARIES),
    ("variable PYTHON", Part.OTHER),
    ("variable TF_CLI_", Part.OTHER),
    ("variable TF_CPP_", Part.OTHER),
    ("variable MALLOC_", Part.OTHER),
    ("variable ", Part.SETTINGS),
    ("torch.", Part.SETTINGS),
    ("tf.", Part.SETTINGS),
)
_TELLING = (
    "processor",
    "package torch",
    "package tensorflow",
    "package jax",
    "package numpy",
    "library CUDA",
    "library cuDNN",
)
"""How those names begin that say most of their part."""
_MAY_LACK = ("variable ", "package ", "gpu ")
"""What one run may have and another lack. Other facts are always recorded, if not by every version."""
_THREADS = (
    "NUM_THREADS",
    "num_threads",
    "num_interop_threads",
    "parallelism_threads",
    "variable OMP_",
    "variable KMP_",
)


def part_of(name: str) -> Part:
    """The part of the environment that a recorded fact belongs to.

    Args:
        name: Of the fact, as `determinism.environment` and the frameworks' settings name it.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    if any(word in name for word in _THREADS):
        return Part.THREADS
    return next((part for start, part in _BY_START if name.startswith(start)), Part.OTHER)


def environment_differences(one: Trace, other: Trace) -> list[EnvironmentDifference]:
    """What differs between what two runs ran on, what decides most about numbers first."""
    first, second = (_facts(trace) for trace in (one, other))
    names = [
        name
        for name in first.keys() | second.keys()
        if first.get(name) != second.get(name) and (name.startswith(_MAY_LACK) or (name in first and name in second))
    ]
    names.sort(key=lambda name: (_ORDER.index(part_of(name)), not name.startswith(_TELLING), name))
    return [(name, first.get(name, "not set"), second.get(name, "not set")) for name in names]


def _facts(trace: Trace) -> dict[str, str]:
    """Name and value of what the first process of a run ran on."""
    if not trace.processes:
        return {}
    description = trace.processes[0].description
    return {**(description.get("environment") or {}), **(description.get("settings") or {})}


def stack_differences(differences: Sequence[EnvironmentDifference]) -> list[EnvironmentDifference]:
    """Those of the differences that may change numbers."""
    return [difference for difference in differences if part_of(difference[0]) is not Part.OTHER]


def compare(*traces: str | os.PathLike[str], strict: bool = False, allow_failure: bool = False) -> Comparison:
    """Compare two or more traces on disk.

    Args:
        *traces: The folders that `determinism record` or `determinism.record` wrote.
        strict: Dead differences make runs different too.
        allow_failure: Equal runs that failed in the same way are the same.

    Raises:
        UsageError: There are fewer than two, or their levels of recording differ.
        TraceError: A trace cannot be read.

    Returns:
        The comparison; `verdict` is `same`, `different` or `inconclusive`.

    Example:
        >>> import torch
        >>> for run in ("run-1", "run-2"):
        ...     with determinism.record(run):
        ...         total = torch.rand(4).sum().item()
        >>> found = determinism.compare("run-1", "run-2")
        >>> print(found.verdict, found.first_divergence.kind, found.first_divergence.op)
        different rng aten::rand
    """
    opened = [open_trace(Path(trace)) for trace in traces]
    return with_values(compare_runs(opened, strict=strict, allow_failure=allow_failure), opened)


def compare_runs(traces: Sequence[Trace], *, strict: bool = False, allow_failure: bool = False) -> Comparison:
    """Compare the first run with each other one; the first that differs decides.

    Args:
        traces: Two or more runs.
        strict: Dead differences make runs different too.
        allow_failure: Equal runs that failed in the same way are the same.

    Raises:
        UsageError: There are fewer than two, or their levels of recording differ.
        TraceError: A trace cannot be read.
    """
    if len(traces) < 2:
        raise UsageError("too-few-runs", f"Comparing needs two runs or more; {len(traces)} given.")
    require_comparable(traces)
    comparison = Comparison(
        Verdict.SAME,
        tuple(summary_of(trace) for trace in traces),
        recorded_by(traces),
        level=str(traces[0].processes[0].description.get("level", "op")) if traces[0].processes else "op",
        open_settings=_open_settings(traces[0]),
    )
    for number, other in enumerate(traces[1:], start=2):
        pair_siblings(traces[0], other)
        comparison = _compare_pair(traces[0], other, comparison, number=number, strict=strict)
        if comparison.verdict is Verdict.DIFFERENT:
            break
    comparison = _with_environment(_with_losses(comparison, traces), traces)
    return conclude(comparison, traces, allow_failure=allow_failure)


def _open_settings(trace: Trace) -> tuple[tuple[str, str], ...]:
    found = [(process.description.get("open_settings") or {}).items() for process in trace.processes]
    return tuple(sorted({item for items in found for item in items}))


def _with_losses(comparison: Comparison, traces: Sequence[Trace]) -> Comparison:
    """Find the losses of the runs that were compared, in the process that departed before others."""
    course = comparison.course or Course((1, 2))
    first, second = (ordered(traces[number - 1]) for number in course.runs)
    partners = {process.key: process for process in second}
    departed = comparison.first_divergence.process if comparison.first_divergence is not None else None
    pairs = [(process, partners[process.key]) for process in first if process.key in partners]
    found = losses(sorted(pairs, key=lambda pair: pair[0].key != departed))
    return comparison if found is None else replace(comparison, course=replace(course, losses=found))


def _compare_pair(first: Trace, second: Trace, comparison: Comparison, *, number: int, strict: bool) -> Comparison:
    """Compare the first run with another one, counted from 1, and add what was found to what earlier pairs showed."""
    mine, others = (ordered(trace) for trace in (first, second))
    partners = {process.key: process for process in others}
    results: list[ProcessComparison] = [
        compare_as_far_as_recorded(process, partners[process.key], (first, second))
        for process in mine
        if process.key in partners
    ]
    received = frozenset[Pair]().union(*(result.received.pairs for result in results))
    main = {result.part_of: result.traces for result in results}
    search = DigestSearch()
    for streams in unordered(first, second):
        around = Surroundings(
            received, main.get(streams.part_of), search, lambda: any(cut_reasons(trace) for trace in (first, second))
        )
        results.append(compare_unordered(streams, around))
    explained = Explained(results, search)
    ways = explained.ways()
    read = explained.read_elsewhere(ways)
    unread = [result for result in results if not any(result is other for other in read)]
    comparison = replace(
        comparison,
        dead_differences=comparison.dead_differences + sum(result.dead_differences for result in unread),
        dead_first=(*comparison.dead_first, *(dead for result in unread for dead in result.dead_first))[:_MOST_DEAD],
    )
    if ways:
        counts = [result.counts for result in results if result.counts is not None]
        return replace(_with_origin(comparison, ways), course=Course((1, number), StepCounts.spans(counts) or None))
    partial = [result.key for result in results if isinstance(result, UnorderedComparison) and result.is_partial]
    if partial:
        comparison = replace(comparison, trouble=(*comparison.trouble, _too_many(partial)))
    unmatched = sorted({process.key for process in mine} ^ set(partners))
    # A process that a trace has lost is not a difference between the runs: `conclude` names it.
    is_whole = not (first.missing_processes or second.missing_processes)
    if unmatched and is_whole and first.processes and second.processes:
        missing = _missing_process(first, second, unmatched[0])
        return replace(comparison, verdict=Verdict.DIFFERENT, first_divergence=missing)
    if strict and (dead := next((r.first_dead for r in results if r.first_dead is not None), None)) is not None:
        return replace(comparison, verdict=Verdict.DIFFERENT, first_divergence=dead)
    return comparison


_MOST_DEAD = 5
"""Of the dead differences that are described."""


def _with_origin(comparison: Comparison, ways: list[list[Found]]) -> Comparison:
    """Report the origin of the first way, and beside it every other divergence with what explains it."""
    origin = ways[0][-1]
    others: dict[tuple[str | None, ...], Divergence] = {}
    for way in ways:
        for found, sender in zip(way, [*way[1:], None], strict=True):
            key = _thread(found.divergence)
            if key != _thread(origin.divergence):
                source = None if sender is None else sender.divergence.process
                others.setdefault(key, replace(found.divergence, received_from=source))
    reached = [found.result for way in ways if way[-1].result is origin.result for found in reversed(way)]
    # Processes count steps of their own, so that of the origin says most.
    others_too = sorted(reached, key=lambda result: result.first_visible.step if result.first_visible else math.inf)
    shown = origin.result if origin.result.first_visible is not None else others_too[0]
    return replace(
        comparison,
        verdict=Verdict.DIFFERENT,
        first_divergence=origin.divergence,
        divergences=tuple(others.values()),
        first_visible=shown.first_visible,
        infected=tuple(shown.infected),
        absorbed=all(result.absorbed for result in reached if result.divergence is not None),
        dataflow=origin.result.dataflow,
    )


def _too_many(streams: Sequence[str]) -> Trouble:
    return Trouble(
        "too-many-differences",
        f"So many records of {' and '.join(streams)} are in one run only that the earliest were followed and the others were "
        "not. None of those counts, but one of the others may. Record less with --steps.",
    )


def _thread(divergence: Divergence) -> tuple[str | None, ...]:
    return divergence.process, divergence.stream, divergence.thread


def _missing_process(first: Trace, second: Trace, key: str) -> Divergence:
    side = next(i for i, trace in enumerate((first, second)) if any(p.key == key for p in trace.processes))
    return Divergence(
        Kind.STRUCTURE, key, 0, side, 0, "init", "determinism::process", None, None, None, (), None, (),
        f"Process {key!r} recorded in run {side + 1} only.",
    )  # fmt: skip


def summary_of(trace: Trace) -> RunSummary:
    """How one run went."""
    manifest = trace.manifest
    return RunSummary(
        command=[str(part) for part in manifest.get("command") or []],
        exit_status=manifest.get("exit_status"),
        stopped_by=manifest.get("stopped_by") or _stopped_by(trace),
        seconds=float(manifest.get("seconds") or 0.0),
        trace=str(trace.folder),
    )


def _stopped_by(trace: Trace) -> str | None:
    return next((process.stopped_by for process in trace.processes if process.stopped_by is not None), None)


def recorded_by(traces: Sequence[Trace]) -> Recorded:
    """How much was recorded: records and steps of the first run, blind spots of all."""
    processes = traces[0].processes
    frameworks = {str(process.description.get("framework", "torch")) for trace in traces for process in trace.processes}
    extents = [process.extent for process in processes]
    steps = max((steps for _, steps in extents), default=0)
    steps_by = next((process.steps_by for process in processes if process.steps_by), None)
    spots: dict[tuple[str, str, str], int] = {}
    for trace in traces:
        for described in (trace.manifest, *(process.description for process in trace.processes)):
            for key, count in _blind_spots(described):
                spots[key] = max(spots.get(key, 0), count)
        for spot in missing_ranks(trace):
            spots[spot.identifier, spot.what, spot.reason] = spot.count
    return Recorded(
        records=sum(records for records, _ in extents),
        steps=steps,
        steps_by=steps_by or ("batches" if steps else None),
        processes=sum(stream_of(process) is not Stream.THREADS for process in processes),
        blind_spots=tuple(BlindSpot(*key, count) for key, count in spots.items()),
        frameworks=frozenset(frameworks or {"torch"}),
        recorders=sorted(_recorders(traces)),
    )


def _recorders(traces: Sequence[Trace]) -> set[tuple[str, str]]:
    described = [process.description for trace in traces for process in trace.processes]
    return {(str(one["recorder"]), str(one.get("recorder_reason") or "")) for one in described if one.get("recorder")}


def _blind_spots(described: dict[str, Any]) -> list[tuple[tuple[str, str, str], int]]:
    return [((s["id"], s["what"], s["reason"]), int(s["count"])) for s in described.get("blind_spots") or []]


def _with_environment(comparison: Comparison, traces: Sequence[Trace]) -> Comparison:
    """Add what differs between what the first run and the one that departed ran on; else the last one."""
    is_different = comparison.verdict is Verdict.DIFFERENT and comparison.course is not None
    number = comparison.course.runs[1] if is_different and comparison.course else len(traces)
    differences = environment_differences(traces[0], traces[number - 1])
    ran_on = tuple((name, str(value)) for name, value in _facts(traces[0]).items())
    return replace(comparison, environment_run=number, environment=tuple(differences), ran_on=ran_on)
