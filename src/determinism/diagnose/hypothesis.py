"""What may have made two runs differ, and the lines that a divergence points to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from determinism.comparison.divergence import Divergence
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.sources import Source
from determinism.trace.names import Frame

_STARTS_BACKWARD = re.compile(r"\b(backward|grad)\(")


@dataclass(frozen=True)
class Hypothesis:
    """A cause that would explain a divergence, and the experiment that shows whether it does."""

    cause: str
    intervention: Intervention
    """What removes the cause."""
    sites: tuple[Frame, ...] = ()
    evidence: tuple[str, ...] = ()
    source: Source | None = None
    """What the program took from outside, where that is the cause."""


def sites_of(divergence: Divergence) -> tuple[Frame, ...]:
    """The lines that a divergence points to: where memory was allocated or saved, the call, its forward.

    The line that only starts the backward pass says less than the one whose gradient it is.
    """
    called: tuple[Frame | None, ...] = (divergence.site, divergence.forward_site)
    if divergence.site is not None and _STARTS_BACKWARD.search(divergence.site.code):
        called = (divergence.forward_site, divergence.site)
    found = (divergence.allocated_at, divergence.saved_at, *called)
    return tuple(dict.fromkeys(site for site in found if site is not None))
