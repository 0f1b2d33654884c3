"""Compares the traces of two or more runs and comes to a verdict."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from determinism.comparison.comparable import require_comparable
from determinism.comparison.course import Course
from determinism.comparison.digest_search import DigestSearch
from determinism.comparison.divergence import Divergence
from determinism.comparison.endings import compare_as_far_as_recorded, conclude, cut_reasons
from determinism.comparison.explained import Explained
from determinism.comparison.losses import losses
from determinism.comparison.missing_ranks import missing_ranks
from determinism.comparison.process import ProcessComparison
from determinism.comparison.received import Pair
from determinism.comparison.result import BlindSpot, Comparison, Recorded, RunSummary, Trouble
from determinism.comparison.senders import Found
from determinism.comparison.siblings import pair_siblings
from determinism.comparison.stack import environment_differences
from determinism.comparison.step_counts import StepCounts
from determinism.comparison.streams import ordered, stream_of, unordered
from determinism.comparison.unordered import Surroundings, UnorderedComparison, compare_unordered
from determinism.comparison.values import add_values
from determinism.errors import UsageError
from determinism.trace.opening import open_trace
from determinism.trace.reader import Trace
from determinism.types import Kind, Stream, Verdict


def compare(*traces: str | os.PathLike[str], strict: bool = False, allow_failure: bool = False) -> Comparison:
    """Compare two or more traces on disk.

    Args:
        *traces: The folders that `determinism record` or `determinism.record` wrote.
        strict: Dead differences make runs different too.
        allow_failure: Equal runs that failed in the same way are the same.

    Raises:
        UsageError: There are fewer than two, or their levels of recording differ.
        TraceError: A trace cannot be read.
    """
    opened = [open_trace(Path(trace)) for trace in traces]
    comparison = compare_runs(opened, strict=strict, allow_failure=allow_failure)
    add_values(comparison, opened)
    return comparison


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
    comparison = Comparison(Verdict.SAME, [summary_of(trace) for trace in traces], recorded_by(traces))
    comparison.level = str(traces[0].processes[0].description.get("level", "op")) if traces[0].processes else "op"
    for number, other in enumerate(traces[1:], start=2):
        pair_siblings(traces[0], other)
        if _compare_pair(traces[0], other, comparison, number=number, strict=strict):
            break
    _add_losses(comparison, traces)
    _add_environment(comparison, traces)
    comparison.open_settings = sorted(
        {item for process in traces[0].processes for item in (process.description.get("open_settings") or {}).items()}
    )
    conclude(comparison, traces, allow_failure=allow_failure)
    return comparison


def _add_losses(comparison: Comparison, traces: Sequence[Trace]) -> None:
    """Find the losses of the runs that were compared, in the process that departed before others."""
    course = comparison.course or Course((1, 2))
    first, second = (ordered(traces[number - 1]) for number in course.runs)
    partners = {process.key: process for process in second}
    departed = comparison.first_divergence.process if comparison.first_divergence is not None else None
    pairs = [(process, partners[process.key]) for process in first if process.key in partners]
    found = losses(sorted(pairs, key=lambda pair: pair[0].key != departed))
    if found is not None:
        comparison.course = replace(course, losses=found)


def _compare_pair(first: Trace, second: Trace, comparison: Comparison, *, number: int, strict: bool) -> bool:
    """Compare the first run with another one, counted from 1, into the result; returns whether they differ."""
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
    comparison.dead_differences += sum(result.dead_differences for result in unread)
    comparison.dead_first = [*comparison.dead_first, *(d for r in unread for d in r.dead_first)][:5]
    if ways:
        _take(comparison, ways)
        counts = [result.counts for result in results if result.counts is not None]
        comparison.course = Course((1, number), StepCounts.spans(counts) or None)
        return True
    partial = [result.key for result in results if isinstance(result, UnorderedComparison) and result.is_partial]
    if partial:
        comparison.trouble.append(_too_many(partial))
    unmatched = sorted({process.key for process in mine} ^ set(partners))
    # A process that a trace has lost is not a difference between the runs: `conclude` names it.
    is_whole = not (first.missing_processes or second.missing_processes)
    if unmatched and is_whole and first.processes and second.processes:
        comparison.verdict = Verdict.DIFFERENT
        comparison.first_divergence = _missing_process(first, second, unmatched[0])
        return True
    if strict and (dead := next((r.first_dead for r in results if r.first_dead is not None), None)) is not None:
        comparison.verdict = Verdict.DIFFERENT
        comparison.first_divergence = dead
        return True
    return False


def _take(comparison: Comparison, ways: list[list[Found]]) -> None:
    """Report the origin of the first way, and beside it every other divergence with what explains it."""
    origin = ways[0][-1]
    comparison.verdict = Verdict.DIFFERENT
    comparison.first_divergence = origin.divergence
    others: dict[tuple[str | None, ...], Divergence] = {}
    for way in ways:
        for found, sender in zip(way, [*way[1:], None], strict=True):
            key = _thread(found.divergence)
            if key != _thread(origin.divergence):
                source = None if sender is None else sender.divergence.process
                others.setdefault(key, replace(found.divergence, received_from=source))
    comparison.divergences = list(others.values())
    reached = [found.result for way in ways if way[-1].result is origin.result for found in reversed(way)]
    # Processes count steps of their own, so that of the origin says most.
    others_too = sorted(reached, key=lambda result: result.first_visible.step if result.first_visible else math.inf)
    shown = origin.result if origin.result.first_visible is not None else others_too[0]
    comparison.first_visible = shown.first_visible
    comparison.infected = shown.infected
    comparison.absorbed = all(result.absorbed for result in reached if result.divergence is not None)
    comparison.dataflow = origin.result.dataflow


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
        command=[str(part) for part in manifest.get("command", [])],
        exit_status=manifest.get("exit_status"),
        stopped_by=manifest.get("stopped_by") or _stopped_by(trace),
        seconds=float(manifest.get("seconds") or 0.0),
        trace=str(trace.folder),
    )


def _stopped_by(trace: Trace) -> str | None:
    return next((process.stopped_by for process in trace.processes if process.stopped_by is not None), None)


def recorded_by(traces: Sequence[Trace]) -> Recorded:
    """How much was recorded: records and steps of the first run, blind spots of all."""
    is_process = [stream_of(process) is not Stream.THREADS for process in traces[0].processes]
    recorded = Recorded(processes=sum(is_process))
    spots: dict[tuple[str, str, str], int] = {}
    for process in traces[0].processes:
        records, steps = process.extent
        recorded.records += records
        recorded.steps = max(recorded.steps, steps)
        recorded.steps_by = recorded.steps_by or process.steps_by
    if recorded.steps_by is None and recorded.steps:
        recorded.steps_by = "batches"
    for trace in traces:
        for described in (trace.manifest, *(process.description for process in trace.processes)):
            for key, count in _blind_spots(described):
                spots[key] = max(spots.get(key, 0), count)
        for spot in missing_ranks(trace):
            spots[spot.identifier, spot.what, spot.reason] = spot.count
    recorded.blind_spots = [BlindSpot(*key, count) for key, count in spots.items()]
    return recorded


def _blind_spots(described: dict[str, Any]) -> list[tuple[tuple[str, str, str], int]]:
    return [((s["id"], s["what"], s["reason"]), int(s["count"])) for s in described.get("blind_spots") or []]


def _add_environment(comparison: Comparison, traces: Sequence[Trace]) -> None:
    """Tell what differs between what the first run and the one that departed ran on; else the last one."""
    is_known = comparison.verdict is Verdict.DIFFERENT and comparison.course is not None
    comparison.environment_run = comparison.course.runs[1] if is_known and comparison.course else len(traces)
    comparison.environment = environment_differences(traces[0], traces[comparison.environment_run - 1])
