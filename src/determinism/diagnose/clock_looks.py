"""Tells the looks at the clock that decide something from those whose time is only logged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from determinism.diagnose.hypothesis import Hypothesis
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.source_hypotheses import use_text
from determinism.diagnose.sources import Source
from determinism.diagnose.trial import Trial
from determinism.probes.request import FixedSource

CLOCK = "clock"
_SHIFTED = "shifted clock"
_MOST_LINES = 6


def deciding_looks(
    one: Hypothesis, sources: Sequence[Source], held: Intervention, compare: Callable[[Intervention], Trial]
) -> Hypothesis:
    """The same cause with only those lines at which a shifted clock makes runs differ, while it stands still elsewhere.

    All looks at the clock are held still together, because a time must not be compared with one of another clock. So that
    the runs are equal then says nothing of each line.

    Args:
        one: That the clock decides.
        sources: What the program took from outside.
        held: What makes the runs equal, this cause among it.
        compare: Makes runs with an intervention.

    Returns:
        The cause as it was given where nothing can be told.

    Raises:
        BudgetSpent: There is no time left for the runs.
    """
    looks = [source for source in sources if source.source == CLOCK]
    lines = list(dict.fromkeys((look.site.file, look.site.line) for look in looks))
    if not 1 < len(lines) <= _MOST_LINES:
        return one
    idle = {line for line in lines if compare(_shifted(held, *line)).is_equal}
    deciding = [look for look in looks if (look.site.file, look.site.line) not in idle]
    if not idle or not deciding:
        return one
    sites = tuple(site for site in one.sites if (site.file, site.line) not in idle)
    order = {(site.file, site.line): position for position, site in enumerate(one.sites)}
    first = min(deciding, key=lambda look: order.get((look.site.file, look.site.line), len(order)))
    return replace(one, sites=sites, evidence=(use_text(first),), source=first)


def _shifted(held: Intervention, file: str, line: int) -> Intervention:
    return held.also(Intervention(sources=frozenset({FixedSource(file, line, _SHIFTED)})))
