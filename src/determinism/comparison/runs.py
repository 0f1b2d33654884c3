"""Compares the traces of two or more runs and reaches a verdict."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from determinism.comparison.causality import Found, OriginTracer
from determinism.comparison.columns import StepCounts
from determinism.comparison.divergence import MOST_ENTRIES, Divergence, Loss, StepHistory
from determinism.comparison.fingerprints import Streams, ordered, streams_sharing_work, unordered
from determinism.comparison.ordered import compare_common_steps, compare_processes, last_step
from determinism.comparison.partners import pair_siblings
from determinism.comparison.processes import ComparePairs, ProcessComparison, ProcessPair, compare_none
from determinism.comparison.recorded import (
    cut_reasons,
    cut_troubles,
    environment_differences,
    facts_of,
    from_common_step,
    has_no_common_step,
    ledgers_part,
    missing_ranks,
    num_records,
    parted_before,
    recorded_by,
    require_comparable,
    summary_of,
    troubles,
)
from determinism.comparison.records import DigestSearch, Pair
from determinism.comparison.result import Comparison, Trouble
from determinism.comparison.unordered import Surroundings, compare_unordered
from determinism.comparison.values import with_values
from determinism.errors import UsageError, exit_phrase
from determinism.op_semantics import Op, OpSemantics, may_be_dropout
from determinism.trace.opening import open_trace
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import END_OP, STEP_OP, STOPPED_BY_US, Meaning, Table
from determinism.types import Kind, Level, Phase, Verdict

# What exit statuses and cut-off recordings add to the evidence of the tensors.

_NOT_OF_THE_PROGRAM = frozenset({"disk-full", "fail-fast", "interrupted", "run-unfinished", "time-limit"})
"""Reasons why a program's exit status says nothing about the program itself."""


def compare_as_far_as_recorded(first: ProcessTrace, second: ProcessTrace, traces: Sequence[Trace]) -> ProcessComparison:
    """Compare two processes; a cut-off recording does not count as a difference between the runs.

    Raises:
        TraceError: A trace is damaged.
    """
    if any(trace.manifest.get("stopped_by") in STOPPED_BY_US for trace in traces):
        return compare_common_steps(first, second)
    result = compare_processes(first, second)
    if not _is_structure(result.divergence):
        return result
    # Counting reads to the end, and only then is it known whether anything is missing.
    counts = [num_records(process) for process in (first, second)]
    cut = [count for count, trace in zip(counts, traces, strict=True) if cut_reasons(trace)]
    if not cut:
        return result
    limit = min(cut)
    first, second = first.until(limit), second.until(limit)
    result = compare_processes(first, second)
    if result.divergence is not None and _is_structure(result.divergence):
        last = min(last_step(process) for process in (first, second))
        if result.divergence.step >= last:
            return ProcessComparison(first.key)
    return result


def _is_structure(divergence: Divergence | None) -> bool:
    return divergence is not None and divergence.kind is Kind.STRUCTURE


def conclude(comparison: Comparison, traces: Sequence[Trace], *, allow_failure: bool) -> Comparison:
    """Take exit statuses, cut-off and empty recordings into account for the verdict."""
    if comparison.verdict is Verdict.DIFFERENT:
        return comparison
    reasons = [cut_reasons(trace) for trace in traces]
    statuses = [
        None if _NOT_OF_THE_PROGRAM.intersection(of_run) else run.exit_status
        for run, of_run in zip(comparison.runs, reasons, strict=True)
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
                f"All runs ended with {exit_phrase(failed)}. Everything they recorded up to then is equal, but a "
                "program that fails shows only part of what it does. Fix it, or accept the failure with "
                "--allow-failure.",
            )
        )
    verdict = Verdict.INCONCLUSIVE if trouble else comparison.verdict
    return replace(comparison, verdict=verdict, trouble=tuple(trouble))


def _holds_content(trace: Trace) -> bool:
    """Whether anything but the ends of steps and of processes was recorded."""
    for process in trace.processes:
        empty = [n for n, name in enumerate(process.names.texts(Table.OP)) if name in (STEP_OP, END_OP)]
        if any(not np.isin(chunk.columns["op"], empty).all() for chunk in process.chunks()):
            return True
    return False


def _num_steps_ended(trace: Trace) -> int:
    """Return the largest number of steps that a process of a run ended."""
    most = 0
    for process in trace.processes:
        ops = process.names.texts(Table.OP)
        if STEP_OP in ops:
            number = ops.index(STEP_OP)
            most = max(most, sum(int((chunk.columns["op"] == number).sum()) for chunk in process.chunks()))
    return most


def _nothing_recorded(traces: Sequence[Trace], level: str) -> str:
    number, trace = next((n, t) for n, t in enumerate(traces, start=1) if not _holds_content(t))
    if not trace.processes:
        return f"No process of run {number} recorded anything, so there is nothing to compare."
    framework = trace.processes[0].description.get("framework")
    window = max(int(process.description.get("from_step") or 0) for process in trace.processes)
    if window:
        return (
            f"Run {number} ended before step {window:,}, from which its ops were to be recorded (--from-step). The steps in both "
            "ledgers are equal. Give an earlier step."
        )
    if level == Level.OP:
        status = trace.manifest.get("exit_status")
        ended = f" before it failed with {exit_phrase(status)}" if status else ""
        return (
            f"Run {number} imported {framework}, but no op of it was recorded{ended}, so there is nothing to compare."
        )
    steps = _num_steps_ended(trace)
    if steps:
        counted = "1 step" if steps == 1 else f"{steps} steps"
        known = "no parameter" if level == Level.STEP else "no module was called and no parameter"
        return (
            f"Run {number} ended {counted}, but {known}, gradient or optimizer state was known at their ends, so at --level "
            f"{level} there is nothing to compare. Record with --level op, which compares what each op computes."
        )
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
        Kind.STRUCTURE, process.key, max(records - 1, 0), 0, max(steps - 1, 0), "other", Op("determinism::exit", OpSemantics.NOT_ONE_OP), None, None,
        None, (), None, (), f"All recorded tensors are equal, but the runs ended differently ({texts}).",
    )  # fmt: skip


# The losses of two runs as numbers, step by step.


def losses(pairs: Iterable[tuple[ProcessTrace, ProcessTrace]]) -> list[Loss] | None:
    """Return the loss of each step in both runs, from the first pair of processes that has any; None if none has."""
    for pair in pairs:
        first, second = (_by_step(process) for process in pair)
        of_steps = [Loss(step, first.get(step), second.get(step)) for step in sorted(first.keys() | second.keys())]
        if any(loss.first is not None or loss.second is not None for loss in of_steps):
            return _thinned(of_steps)
    return None


def _by_step(process: ProcessTrace) -> dict[int, float | None]:
    """Return the value that the first backward pass of each step started from; None where it is unknown or not a number."""
    numbers = process.numbers
    read = {
        (int(row["producer"]), int(row["output"])): float(row["value"])
        for row in numbers[(numbers["meaning"] == Meaning.READ) & (numbers["producer"] >= 0)]
    }
    by_step: dict[int, float | None] = {}
    for row in numbers[numbers["meaning"] != Meaning.READ]:
        step = int(row["step"])
        if step in by_step:
            continue
        known = float(row["value"])
        value = known if row["meaning"] == Meaning.LOSS else read.get((int(row["producer"]), int(row["output"])))
        by_step[step] = value if value is not None and math.isfinite(value) else None
    return by_step


def _thinned(losses_of_steps: list[Loss]) -> list[Loss]:
    """Thin out very many steps: keep those whose losses are furthest apart among their neighbours, the first and the last."""
    if len(losses_of_steps) <= MOST_ENTRIES:
        return losses_of_steps
    width = math.ceil(len(losses_of_steps) / (MOST_ENTRIES - 2))
    inner = [max(losses_of_steps[start : start + width], key=_gap) for start in range(0, len(losses_of_steps), width)]
    return sorted({*inner, losses_of_steps[0], losses_of_steps[-1]})


def _gap(loss: Loss) -> float:
    return -1.0 if loss.first is None or loss.second is None else abs(loss.first - loss.second)


def compare(*traces: str | os.PathLike[str], strict: bool = False, allow_failure: bool = False) -> Comparison:
    """Compare two or more traces on disk, with the values that they keep.

    Args:
        *traces: Their folders.
        strict: Dead differences make runs different, too.
        allow_failure: Report equal runs as the same even if they failed.

    Raises:
        UsageError: There are fewer than two, or their levels of recording differ.
        TraceError: A trace cannot be read.
    """
    opened = [open_trace(Path(trace)) for trace in traces]
    return compare_opened(opened, strict=strict, allow_failure=allow_failure)


def compare_opened(
    traces: Sequence[Trace],
    *,
    strict: bool = False,
    allow_failure: bool = False,
    compare_pairs: ComparePairs = compare_none,
) -> Comparison:
    """Compare like `compare_runs`, with the values that the traces keep."""
    found = compare_runs(traces, strict=strict, allow_failure=allow_failure, compare_pairs=compare_pairs)
    return with_values(found, traces)


def compare_runs(
    traces: Sequence[Trace],
    *,
    strict: bool = False,
    allow_failure: bool = False,
    compare_pairs: ComparePairs = compare_none,
) -> Comparison:
    """Compare the first run with each other one; the first that differs decides.

    Args:
        traces: Two or more runs.
        strict: Dead differences make runs different, too.
        allow_failure: Report equal runs as the same even if they failed.
        compare_pairs: Compares pairs of processes, for example in workers.

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
        comparison = _compare_pair(
            traces[0], other, comparison, number=number, strict=strict, compare_pairs=compare_pairs
        )
        if comparison.verdict is Verdict.DIFFERENT:
            break
    comparison = _with_environment(_with_hint(_with_losses(comparison, traces), traces), traces)
    return conclude(comparison, traces, allow_failure=allow_failure)


def _open_settings(trace: Trace) -> tuple[tuple[str, str], ...]:
    of_processes = [(process.description.get("open_settings") or {}).items() for process in trace.processes]
    return tuple(sorted({item for settings in of_processes for item in settings}))


_TRAINING_MODE = (
    "The run has no backward pass, yet a dropout drew numbers: the model is in training mode. Call model.eval() if dropout is "
    "not wanted here."
)


def _with_hint(comparison: Comparison, traces: Sequence[Trace]) -> Comparison:
    """Point out that a model that is only evaluated is in training mode, if its dropout is what differs."""
    first = comparison.first_divergence
    is_dropout = (
        first is not None
        and first.kind is Kind.RNG
        and first.phase == Phase.FORWARD.label
        and first.module is not None
        and may_be_dropout(first.op)
    )
    # If a run was cut off or failed, its backward pass may still have been ahead.
    is_cut = any(run.exit_status for run in comparison.runs) or any(map(cut_reasons, traces))
    if first is None or not is_dropout or is_cut or any(map(_computes_gradients, traces)):
        return comparison
    return replace(comparison, first_divergence=replace(first, hint=_TRAINING_MODE))


def _computes_gradients(trace: Trace) -> bool:
    return any(
        bool(np.isin(chunk.columns["phase"], (Phase.BACKWARD, Phase.OPTIMIZER)).any())
        for process in trace.processes
        for chunk in process.chunks()
    )


def _with_losses(comparison: Comparison, traces: Sequence[Trace]) -> Comparison:
    """Add the losses of the compared runs, preferably from the process that diverged first."""
    step_history = comparison.step_history or StepHistory((1, 2))
    first, second = (ordered(traces[number - 1]) for number in step_history.runs)
    partners = {process.key: process for process in second}
    departed = comparison.first_divergence.process if comparison.first_divergence is not None else None
    pairs = [(process, partners[process.key]) for process in first if process.key in partners]
    of_steps = losses(sorted(pairs, key=lambda pair: pair[0].key != departed))
    return comparison if of_steps is None else replace(comparison, step_history=replace(step_history, losses=of_steps))


def _compare_pair(
    first: Trace,
    second: Trace,
    comparison: Comparison,
    *,
    number: int,
    strict: bool,
    compare_pairs: ComparePairs,
) -> Comparison:
    """Compare the first run with another one, counted from 1, and add the result to that of earlier pairs."""
    mine, others = (ordered(trace) for trace in (first, second))
    partners = {process.key: process for process in others}
    whole = [(process, partners[process.key]) for process in mine if process.key in partners]
    parting = ledgers_part(whole)
    if parting is not None:
        return parted_before(comparison, parting, whole)
    pairs = [from_common_step(pair) for pair in whole]
    is_stopped = any(trace.manifest.get("stopped_by") in STOPPED_BY_US for trace in (first, second))
    results: list[ProcessComparison] = [
        _compared_here(pair, (first, second)) if found is None else found
        for pair, found in zip(pairs, compare_pairs(pairs, is_stopped), strict=True)
    ]
    for originals, shorter in zip(whole, pairs, strict=True):
        for process, compared in zip(originals, shorter, strict=True):
            process.truncated |= compared.truncated
    received = frozenset[Pair]().union(*(result.received.pairs for result in results))
    main = {result.part_of: result.traces for result in results}
    search = DigestSearch()

    def as_multiset(streams: Streams) -> ProcessComparison:
        around = Surroundings(
            received, main.get(streams.part_of), search, lambda: any(map(cut_reasons, (first, second)))
        )
        return compare_unordered(streams, around)

    for streams in streams_sharing_work(first, second):
        results = _as_shared(results, streams, as_multiset)
    results += map(as_multiset, unordered(first, second))
    explained = OriginTracer(results, search, lambda: all(map(_is_whole, (first, second))))
    ways = explained.ways()
    count, dead = explained.dead(ways)
    comparison = replace(
        comparison,
        dead_differences=comparison.dead_differences + count,
        dead_first=(*comparison.dead_first, *dead)[:_MOST_DEAD],
    )
    if ways:
        counts = [result.counts for result in results if result.counts is not None]
        return replace(
            _with_origin(comparison, ways), step_history=StepHistory((1, number), StepCounts.spans(counts) or None)
        )
    comparison = replace(comparison, trouble=(*comparison.trouble, *troubles(whole)))
    return _where_no_record_differs(comparison, results, first, second, strict=strict)


def _where_no_record_differs(
    comparison: Comparison, results: Sequence[ProcessComparison], first: Trace, second: Trace, *, strict: bool
) -> Comparison:
    """Conclude for a pair of runs without a live difference: processes that only one has, and dead differences."""
    partial = [result.key for result in results if result.is_partial]
    if partial:
        comparison = replace(comparison, trouble=(*comparison.trouble, _too_many(partial)))
    unmatched = sorted({process.key for process in ordered(first)} ^ {process.key for process in ordered(second)})
    # A process that a trace has lost is not a difference between the runs: `conclude` reports it.
    is_whole = not (first.missing_processes or second.missing_processes)
    if unmatched and is_whole and first.processes and second.processes:
        missing = _missing_process(first, second, unmatched[0])
        return replace(comparison, verdict=Verdict.DIFFERENT, first_divergence=missing)
    if strict and (dead := next((r.first_dead for r in results if r.first_dead is not None), None)) is not None:
        return replace(comparison, verdict=Verdict.DIFFERENT, first_divergence=dead)
    return comparison


def _as_shared(
    results: list[ProcessComparison], streams: Streams, as_multiset: Callable[[Streams], ProcessComparison]
) -> list[ProcessComparison]:
    """Replace the results of processes that differ individually, if together they did exactly the same work in both runs."""
    keys = {process.key for process in streams.first}
    if all(result.divergence is None for result in results if result.key in keys):
        return results
    together = as_multiset(streams)
    if together.made is not None or together.is_partial:
        return results
    return [*(result for result in results if result.key not in keys), together]


def _is_whole(trace: Trace) -> bool:
    """Whether every process of a run was recorded to its end."""
    return not cut_reasons(trace) and not any(missing_ranks(trace))


def _compared_here(pair: ProcessPair, traces: Sequence[Trace]) -> ProcessComparison:
    if has_no_common_step(pair):
        return ProcessComparison(pair[0].key)
    compared = compare_as_far_as_recorded(*pair, traces)
    if compared.divergence is None:
        # The names of a thousand equal ranks alone would take half a gigabyte.
        for process in pair:
            process.give_back()
    return compared


_MOST_DEAD = 5
"""How many dead differences are described."""


def _with_origin(comparison: Comparison, ways: list[list[Found]]) -> Comparison:
    """Report the origin of the first way, and every other divergence with its explanation."""
    origin = ways[0][-1]
    others: dict[tuple[str | None, ...], Divergence] = {}
    for way in ways:
        for stretch, sender in zip(way, [*way[1:], None], strict=True):
            key = _thread(stretch.divergence)
            if key != _thread(origin.divergence):
                source = None if sender is None else sender.divergence.process
                others.setdefault(key, replace(stretch.divergence, received_from=source))
    reached = [stretch.result for way in ways if way[-1].result is origin.result for stretch in reversed(way)]
    # Each process counts its own steps, so the origin's own difference says most.
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
        f"So many records of {' and '.join(streams)} are in only one run that only the earliest were followed. None "
        "of these counts, but a later one may. Record less with --steps.",
    )


def _thread(divergence: Divergence) -> tuple[str | None, ...]:
    return divergence.process, divergence.stream, divergence.thread


def _missing_process(first: Trace, second: Trace, key: str) -> Divergence:
    side = next(i for i, trace in enumerate((first, second)) if any(p.key == key for p in trace.processes))
    return Divergence(
        Kind.STRUCTURE, key, 0, side, 0, "init", Op("determinism::process", OpSemantics.NOT_ONE_OP), None, None, None, (), None, (),
        f"Process {key!r} recorded in run {side + 1} only.",
    )  # fmt: skip


def _with_environment(comparison: Comparison, traces: Sequence[Trace]) -> Comparison:
    """Add what differs between the environments of the first run and the one that differs, or else the last one."""
    is_different = comparison.verdict is Verdict.DIFFERENT and comparison.step_history is not None
    number = comparison.step_history.runs[1] if is_different and comparison.step_history else len(traces)
    differences = environment_differences(traces[0], traces[number - 1])
    ran_on = tuple((name, str(value)) for name, value in facts_of(traces[0]).items())
    return replace(comparison, environment_run=number, environment=tuple(differences), ran_on=ran_on)
