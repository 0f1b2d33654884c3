"""Recognises a checkpoint that a thread saved while others changed it, by what was read back from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from determinism.comparison.digest_search import DigestSearch
from determinism.comparison.divergence import Divergence
from determinism.comparison.process import ProcessComparison
from determinism.comparison.received import Received
from determinism.comparison.thread_lines import line_of
from determinism.trace.names import Frame
from determinism.trace.reader import ProcessTrace
from determinism.types import Role, Stream

_DETAIL = (
    "No thread made what was read here in {runs}, and a thread saves tensors at {file}:{line}. What is on disk was "
    "written while the tensors changed."
)


def as_torn(
    divergence: Divergence,
    received: Received,
    streams: Sequence[ProcessComparison],
    search: DigestSearch,
) -> Divergence | None:
    """The same divergence, if it may have read what a thread had saved in pieces; None if no thread saved anything.

    What comes out of a whole checkpoint is what some thread had made. Only an experiment shows that the threads matter:
    other files hold what no thread made too.

    Args:
        divergence: One that got values from outside.
        received: These values.
        streams: All of its process.
        search: Looks for digests.
    """
    traces = [one.traces for one in streams if one.traces is not None]
    threads = [trace for one in streams if one.stream is Stream.THREADS for trace in one.traces or ()]
    saved_at = next((site for thread in threads if (site := _saves_at(thread))), None)
    if saved_at is None:
        return None
    unmade = {
        run
        for pair in received.pairs
        for run, digest in enumerate(pair)
        if not any(search.has_made(trace[run], digest) for trace in traces)
    }
    if not unmade:
        return None
    runs = " and ".join(f"run {run + 1}" for run in sorted(unmade))
    detail = _DETAIL.format(runs=runs, file=saved_at.file.rpartition("/")[2], line=saved_at.line)
    return replace(divergence, saved_at=saved_at, detail=detail)


def _saves_at(stream: ProcessTrace) -> Frame | None:
    """The line at which a thread saved first."""
    for chunk in stream.chunks():
        for row in np.flatnonzero(chunk.columns["role"] == Role.CHECKPOINT)[:1]:
            return line_of(stream, chunk, int(row))
    return None
