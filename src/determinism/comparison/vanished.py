"""Follows a difference that vanished: what read it before counts, and so does what that led to."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from determinism.comparison.origins import entry
from determinism.comparison.partners import producers
from determinism.trace.chunk import Array, Chunk
from determinism.trace.reader import ProcessTrace
from determinism.types import Access

_MOST_RECORDS = 1 << 16


def read_on(process: ProcessTrace, vanished: Mapping[int, Set[int]]) -> set[int]:
    """Which differences reached something that counts, although they showed no more when they did.

    Args:
        process: The stream.
        vanished: For a record that received differences and gave equal outputs: indices of their roots.
    """
    roots_of = {number: set(roots) for number, roots in vanished.items()}
    wanted = set().union(*roots_of.values())
    reached: set[int] = set()
    for chunk in process.chunks() if wanted else ():
        _pass_on(chunk, roots_of)
        for row in _marked(chunk, roots_of) - vanished.keys():
            roots = roots_of[row]
            if not roots <= reached and entry(process, chunk, row - chunk.first).counts:
                reached |= roots
        if reached >= wanted or len(roots_of) > _MOST_RECORDS:
            break
    return reached


def _pass_on(chunk: Chunk, roots_of: dict[int, set[int]]) -> None:
    """Mark the records of a chunk that read from marked ones."""
    inputs = chunk.children["inputs"]
    sources = np.where(inputs.columns["access"] == Access.READ, producers(chunk), -1)
    owners = np.repeat(chunk.numbers, np.diff(inputs.starts))
    fresh: Array = np.fromiter(roots_of, dtype=np.int64, count=len(roots_of))
    while len(fresh):
        found = set()
        for at in np.flatnonzero(np.isin(sources, fresh)).tolist():
            known = roots_of.setdefault(int(owners[at]), set())
            new = roots_of[int(sources[at])] - known
            if new:
                known |= new
                found.add(int(owners[at]))
        fresh = np.array(sorted(found), dtype=np.int64)


def _marked(chunk: Chunk, roots_of: dict[int, set[int]]) -> set[int]:
    return {number for number in roots_of if 0 <= number - chunk.first < chunk.rows}
