"""What exit statuses and cut recordings add to what the tensors say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from determinism.comparison.divergence import Divergence
from determinism.comparison.process import ProcessComparison, compare_processes
from determinism.comparison.result import Comparison, Trouble
from determinism.comparison.whole_steps import up_to_common_step
from determinism.exit_status import exit_phrase
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.schema import END_OP, STEP_OP, Table
from determinism.types import Kind, Level, Verdict

_NOT_OF_THE_PROGRAM = frozenset({"disk-full", "fail-fast", "interrupted", "run-unfinished"})
"""What makes a program's exit status say nothing about the program itself."""
INTERRUPT = "interrupt"
"""What a manifest says has stopped a run that the user ended."""
FAIL_FAST = "fail-fast"
"""What a manifest says has stopped a run that had shown a difference."""


def compare_as_far_as_recorded(first: ProcessTrace, second: ProcessTrace, traces: Sequence[Trace]) -> ProcessComparison:
    """Compare two processes; that a recording was cut off is no difference between the runs.

    Raises:
        TraceError: A trace is damaged.
    """
    if any(trace.manifest.get("stopped_by") == FAIL_FAST for trace in traces):
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
    elif trace.manifest.get("stopped_by") == FAIL_FAST:
        found.append("fail-fast")
    elif not trace.manifest.get("complete"):
        found.append("run-unfinished")
    return found


def conclude(comparison: Comparison, traces: Sequence[Trace], *, allow_failure: bool) -> None:
    """Bring exit statuses, cut recordings and empty ones into the verdict."""
    if comparison.verdict is Verdict.DIFFERENT:
        return
    reasons = [cut_reasons(trace) for trace in traces]
    statuses = [
        None if _NOT_OF_THE_PROGRAM.intersection(found) else run.exit_status
        for run, found in zip(comparison.runs, reasons, strict=True)
    ]
    known = {status for status in statuses if status is not None}
    if len(known) > 1 and traces[0].processes:
        comparison.verdict = Verdict.DIFFERENT
        comparison.first_divergence = _ended_differently(traces, statuses)
        return
    comparison.trouble += cut_troubles(traces, reasons)
    if not comparison.trouble and not all(_holds_content(trace) for trace in traces):
        comparison.trouble.append(Trouble("nothing-recorded", _nothing_recorded(traces, comparison.level)))
    failed = next((status for status in statuses if status), None)
    if not comparison.trouble and failed is not None and not allow_failure:
        comparison.trouble.append(
            Trouble(
                "runs-failed",
                f"All runs ended with {exit_phrase(failed)}. What they recorded up to there is equal, but a program that "
                "fails shows only part of what it does. Mend it, or accept the failure with --allow-failure.",
            )
        )
    if comparison.trouble:
        comparison.verdict = Verdict.INCONCLUSIVE


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
