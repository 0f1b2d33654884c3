"""Compares the traces of two or more runs and comes to a verdict."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from determinism.comparison.process import ProcessComparison, compare_processes
from determinism.comparison.result import BlindSpot, Comparison, Divergence, Recorded, RunSummary, Trouble
from determinism.errors import UsageError
from determinism.trace.reader import ProcessTrace, Trace, open_trace
from determinism.types import Kind, Verdict


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
    return compare_runs([open_trace(Path(t)) for t in traces], strict=strict, allow_failure=allow_failure)


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
    _check_levels(traces)
    comparison = Comparison(Verdict.SAME, [_summary(trace) for trace in traces], _recorded(traces))
    comparison.level = str(traces[0].processes[0].description.get("level", "op")) if traces[0].processes else "op"
    for other in traces[1:]:
        if _compare_pair(traces[0], other, comparison, strict=strict):
            break
    comparison.environment = _environment(traces)
    _conclude(comparison, traces, allow_failure=allow_failure)
    return comparison


def _check_levels(traces: Sequence[Trace]) -> None:
    levels = [sorted({str(p.description.get("level")) for p in trace.processes}) for trace in traces]
    for level in levels[1:]:
        if level and levels[0] and level != levels[0]:
            raise UsageError(
                "levels-differ",
                f"The runs were recorded at different levels ({', '.join(levels[0])} and {', '.join(level)}), so their "
                "records cannot be compared. Record both with the same --level.",
            )


def _compare_pair(first: Trace, second: Trace, comparison: Comparison, *, strict: bool) -> bool:
    """Compare two runs into the result; returns whether they differ."""
    partners = {process.key: process for process in second.processes}
    results = [compare_processes(p, partners[p.key]) for p in first.processes if p.key in partners]
    differing = [result for result in results if result.divergence is not None]
    comparison.dead_differences += sum(result.dead_differences for result in results)
    comparison.dead_first = [*comparison.dead_first, *(d for r in results for d in r.dead_first)][:5]
    if differing:
        _take(comparison, differing)
        return True
    unmatched = sorted({p.key for p in first.processes} ^ set(partners))
    if unmatched and first.processes and second.processes:
        comparison.verdict = Verdict.DIFFERENT
        comparison.first_divergence = _missing_process(first, second, unmatched[0])
        return True
    if strict and (dead := next((r.first_dead for r in results if r.first_dead is not None), None)) is not None:
        comparison.verdict = Verdict.DIFFERENT
        comparison.first_divergence = dead
        return True
    return False


def _take(comparison: Comparison, differing: list[ProcessComparison]) -> None:
    def place(result: ProcessComparison) -> tuple[int, int]:
        assert result.divergence is not None
        return result.divergence.step, result.divergence.record

    ordered = sorted(differing, key=place)
    chosen = ordered[0]
    comparison.verdict = Verdict.DIFFERENT
    comparison.first_divergence = chosen.divergence
    comparison.divergences = [r.divergence for r in ordered[1:] if r.divergence is not None]
    comparison.first_visible = chosen.first_visible
    comparison.infected = chosen.infected
    comparison.absorbed = chosen.absorbed


def _missing_process(first: Trace, second: Trace, key: str) -> Divergence:
    side, trace = next((i, t) for i, t in enumerate((first, second)) if any(p.key == key for p in t.processes))
    return Divergence(
        Kind.STRUCTURE, key, 0, side, 0, "init", "determinism::process", None, None, None, (), None, (),
        f"Process {key!r} recorded in run {side + 1} only.",
    )  # fmt: skip


def _summary(trace: Trace) -> RunSummary:
    manifest = trace.manifest
    return RunSummary(
        command=[str(part) for part in manifest.get("command", [])],
        exit_status=manifest.get("exit_status"),
        stopped_by=manifest.get("stopped_by") or _stopped_by(trace),
        seconds=float(manifest.get("seconds") or 0.0),
        trace=str(trace.folder),
    )


def _stopped_by(trace: Trace) -> str | None:
    return next((str(p.description["stopped_by"]) for p in trace.processes if p.description.get("stopped_by")), None)


def _recorded(traces: Sequence[Trace]) -> Recorded:
    recorded = Recorded(processes=len(traces[0].processes))
    spots: dict[tuple[str, str, str], int] = {}
    for process in traces[0].processes:
        records, steps = process.extent
        recorded.records += records
        recorded.steps = max(recorded.steps, steps)
        recorded.steps_by = recorded.steps_by or process.steps_by or ("batches" if steps else None)
    for trace in traces:
        for process in trace.processes:
            for key, count in _blind_spots(process):
                spots[key] = max(spots.get(key, 0), count)
    recorded.blind_spots = [BlindSpot(*key, count) for key, count in spots.items()]
    return recorded


def _blind_spots(process: ProcessTrace) -> list[tuple[tuple[str, str, str], int]]:
    return [((s["id"], s["what"], s["reason"]), int(s["count"])) for s in process.description.get("blind_spots", [])]


def _environment(traces: Sequence[Trace]) -> list[tuple[str, str, str]]:
    facts = []
    for trace in (traces[0], traces[-1]):
        found: dict[str, str] = {}
        for process in trace.processes[:1]:
            found = {**process.description.get("environment", {}), **process.description.get("settings", {})}
        facts.append(found)
    first, last = facts
    return [
        (name, first.get(name, "not set"), last.get(name, "not set"))
        for name in sorted({*first, *last})
        if first.get(name) != last.get(name)
    ]


def _conclude(comparison: Comparison, traces: Sequence[Trace], *, allow_failure: bool) -> None:
    """What exit statuses and cut traces add to what the tensors say."""
    if not any(trace.processes for trace in traces):
        _trouble(comparison, "nothing-recorded", "No process of the runs recorded anything, so there is nothing to compare.")
        return
    if comparison.verdict is Verdict.DIFFERENT:
        return
    statuses = [run.exit_status for run in comparison.runs]
    if len(set(statuses)) > 1:
        comparison.verdict = Verdict.DIFFERENT
        comparison.first_divergence = _ended_differently(traces, statuses)
        return
    stopped = next((run for run in comparison.runs if run.stopped_by in ("max-disk", "disk-full", "interrupt")), None)
    if stopped is not None:
        message = {
            "max-disk": "The trace reached --max-disk, and what came after was not recorded. What was recorded is equal.",
            "disk-full": "The disk was full, and what came after was not recorded. What was recorded is equal. "
            "Make room, or give another place with --output.",
            "interrupt": "A run was interrupted. What was recorded up to there is equal.",
        }[str(stopped.stopped_by)]
        _trouble(comparison, str(stopped.stopped_by), message)
    elif statuses[0] not in (0, None) and not allow_failure:
        _trouble(
            comparison,
            "runs-failed",
            f"All runs ended with exit status {statuses[0]}. What they recorded up to there is equal, but a program that "
            "fails shows only part of what it does. Mend it, or accept the failure with --allow-failure.",
        )
    elif not sum(process.extent[0] for process in traces[0].processes):
        _trouble(comparison, "nothing-recorded", "The program imported a framework but ran no op, so there is nothing to compare.")


def _trouble(comparison: Comparison, identifier: str, message: str) -> None:
    comparison.verdict = Verdict.INCONCLUSIVE
    comparison.trouble.append(Trouble(identifier, message))


def _ended_differently(traces: Sequence[Trace], statuses: Sequence[int | None]) -> Divergence:
    process = traces[0].processes[0]
    records, steps = process.extent
    texts = ", ".join(f"run {i + 1}: {status}" for i, status in enumerate(statuses))
    return Divergence(
        Kind.STRUCTURE, process.key, max(records - 1, 0), 0, max(steps - 1, 0), "other", "determinism::exit", None, None,
        None, (), None, (), f"All recorded tensors are equal, but the runs ended differently (exit status of {texts}).",
    )  # fmt: skip
