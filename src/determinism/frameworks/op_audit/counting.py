"""Counts the different results that a case gives, forward and backward."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from determinism.knowledge.measurement import Measurement


class Repeatable(Protocol):
    """One case on one set of inputs, to be run again and again."""

    def forward(self) -> bytes:
        """Run it, and give the digest of its results."""

    def backward(self) -> bytes | None:
        """Differentiate what `forward` gave last, and give the digest of the gradients; None where there are none."""


def count_results(
    run: Repeatable, about: Measurement, *, runs: int, seconds: float, errors: tuple[type[Exception], ...]
) -> Iterator[Measurement]:
    """Run a case, and give a measurement per direction.

    Args:
        run: What to run.
        about: A measurement without counts: what is measured, and how.
        runs: How often, at most.
        seconds: After this time since the first run it is left, if it was run at least three times.
        errors: What the framework raises for an op that it refuses to run.
    """
    forward: set[bytes] = set()
    backward: dict[bytes, set[bytes]] = defaultdict(set)
    done, until = 0, float("inf")
    while done < runs and (done < 3 or time.monotonic() < until):
        try:
            key = run.forward()
        except errors as error:
            yield replace(about, direction="forward", raised=_first_line(error))
            return
        forward.add(key)
        try:
            gradients = run.backward()
        except errors as error:
            yield replace(about, direction="forward", runs=1, distinct=1)
            yield replace(about, direction="backward", raised=_first_line(error))
            return
        if gradients is not None:
            backward[key].add(gradients)
        if not done:
            # The first run may compile, which is not what the time is for.
            until = time.monotonic() + seconds
        done += 1
    yield replace(about, direction="forward", runs=done, distinct=len(forward))
    if backward:
        # Only runs whose forward gave the same say something about the backward.
        yield replace(about, direction="backward", runs=done, distinct=max(map(len, backward.values())))


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0][:200]
    return text or type(error).__name__
