"""Cuts two processes to the steps that both have whole, where one of them has not come to its end."""

from __future__ import annotations

from determinism.trace.reader import ProcessTrace


def up_to_common_step(first: ProcessTrace, second: ProcessTrace) -> tuple[ProcessTrace, ProcessTrace] | None:
    """Both processes without the last step that both began, and what follows it; None if nothing is left.

    Raises:
        TraceError: A trace is damaged.
    """
    if first.steps_by != second.steps_by:
        # One of them has not yet seen what counts its steps.
        return None
    step = min(_last_step(process) for process in (first, second))
    counts = [_count_before(process, step) for process in (first, second)]
    return (first.until(counts[0]), second.until(counts[1])) if min(counts) else None


def _last_step(process: ProcessTrace) -> int:
    return max((int(chunk.columns["step"][-1]) for chunk in process.chunks()), default=0)


def _count_before(process: ProcessTrace, step: int) -> int:
    count = 0
    for chunk in process.chunks():
        before = int((chunk.columns["step"] < step).sum())
        count += before
        if before < chunk.rows:
            break
    return count
