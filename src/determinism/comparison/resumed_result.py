"""Comes to a verdict about a resumed run."""

from __future__ import annotations

from collections.abc import Sequence

from determinism.comparison.endings import cut_reasons, cut_troubles
from determinism.comparison.result import Comparison, Trouble
from determinism.comparison.resumed import ResumedProcess
from determinism.comparison.runs import recorded_by, summary_of
from determinism.comparison.stack import environment_differences
from determinism.trace.reader import Trace
from determinism.types import Phase, Verdict


def conclude_resumed(processes: Sequence[ResumedProcess], full: Trace, first: Trace, resumed: Trace) -> Comparison:
    """Put what the processes came to into one result, whose runs are the full one, the resumed one and the one that saved.

    Args:
        processes: How each process compares.
        full: The run that was not stopped.
        first: The run that saved.
        resumed: The run that went on.
    """
    traces = [full, resumed, first]
    comparison = Comparison(Verdict.SAME, [summary_of(trace) for trace in traces], recorded_by(traces))
    compared = [process for process in processes if process.parts is not None]
    comparison.recorded.steps = max((process.steps for process in compared), default=0)
    comparison.recorded.records = sum(
        max(process.full.extent[0] - process.parts[0].start, 0) for process in compared if process.parts is not None
    )
    comparison.environment = environment_differences(full, resumed)
    comparison.missing = []
    reasons = [cut_reasons(trace) for trace in traces]
    if len(compared) < len(processes) or not compared:
        comparison.trouble.append(Trouble("resume-nothing-compared", _nothing_compared(processes)))
    departing = [process for process in processes if process.result.divergence is not None]
    departing.sort(key=when_it_departs)
    unlike = next((process for process in processes if process.first_departs is not None), None)
    if departing and unlike is not None:
        comparison.trouble.append(Trouble("resume-first-departs", _first_departs(unlike)))
    elif departing:
        _take(comparison, departing)
    comparison.dead_differences = sum(process.result.dead_differences for process in compared)
    comparison.dead_first = [dead for process in compared for dead in process.result.dead_first][:5]
    if comparison.verdict is Verdict.SAME:
        comparison.trouble += cut_troubles(traces, reasons)
        if comparison.trouble:
            comparison.verdict = Verdict.INCONCLUSIVE
    return comparison


def when_it_departs(process: ResumedProcess) -> tuple[int, int, str]:
    """What is earliest comes first: in one step, ranks give each other what they made on the way forward only on the way back."""
    divergence = process.result.divergence
    assert divergence is not None
    return divergence.step, Phase[divergence.phase.upper()], process.full.key


def _take(comparison: Comparison, departing: list[ResumedProcess]) -> None:
    result = departing[0].result
    comparison.verdict = Verdict.DIFFERENT
    comparison.first_divergence = result.divergence
    comparison.divergences = [other.result.divergence for other in departing[1:] if other.result.divergence is not None]
    comparison.first_visible = result.first_visible
    comparison.infected = result.infected
    comparison.dataflow = result.dataflow
    comparison.absorbed = result.absorbed


def _nothing_compared(processes: Sequence[ResumedProcess]) -> str:
    if not processes:
        return (
            "No process recorded in the full run, the first and the resumed one, so there is nothing to compare. Give three commands "
            "that start the same program."
        )
    process = next(one for one in processes if one.parts is None)
    counts = (process.full.extent[1], process.steps_before, process.resumed.extent[1])
    return (
        f"The full run made {counts[0]} steps, the first {counts[1]} and the resumed one {counts[2]}, so no step of the resumed run has its "
        "partner in the full one. The full run must go on beyond the step at which the first ends, and the resumed one from there on. Where "
        "no optimizer counts the steps, call determinism.step()."
    )


def _first_departs(process: ResumedProcess) -> str:
    assert process.first_departs is not None and process.first_departs.divergence is not None
    divergence = process.first_departs.divergence
    where = "" if divergence.site is None else f" at {divergence.site.file}:{divergence.site.line}"
    return (
        f"The first run departs from the full one already at step {divergence.step}, in {divergence.op}{where} ({divergence.kind}), before "
        "anything was resumed. So it cannot be told what the checkpoint lacks. Make the program deterministic first: `determinism check` "
        "names the cause, `determinism run` makes the settings."
    )
