"""What the program took from outside with other values in each run, as what may have made these differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from determinism.comparison.divergence import Divergence
from determinism.diagnose.code_fixes import code_fix
from determinism.diagnose.hypothesis import Hypothesis, sites_of
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.sources import Source
from determinism.probes.request import FixedSource

_BY_SOURCE = {
    "set-order": "hash-order",
    "hash": "hash-value",
    "id": "address-order",
    "listing": "listing-order",
    "clock": "clock",
    "entropy": "entropy",
    "process-id": "process-id",
    "machine-state": "machine-state",
    "file-time": "file-time",
    "python-random": "seed-missing-python",
    "numpy-random": "seed-missing-numpy",
    "unseeded-generator": "generator-unseeded",
    "seed-value": "seed-varies",
    "completion-order": "completion-order",
    "loader-order": "completion-order",
    "queue-order": "queue-order",
    "timer": "timer",
    "uninitialized-array": "uninitialized-memory",
    "checkpoint-rng": "recomputed-randomness",
}

_BY_FACTOR = {"python-random": "python-seed", "numpy-random": "numpy-seed", "queue-order": "thread-schedule"}
"""Sources that are held still as a whole: a fixed value at one line would not be what a fix gives."""

_SHOWN = 60

_TIMER = "timer"
_SELDOM_AT_FAULT = ("clock", "process-id", "entropy", "id", "machine-state", "file-time")
"""Sources that many programs only log."""


def source_hypotheses(divergence: Divergence, sources: Sequence[Source]) -> Iterator[Hypothesis]:
    """What the program took from outside that may explain a divergence, the most telling first.

    Args:
        divergence: The first one.
        sources: In the order of the program.
    """
    before = [one for one in sources if _may_come_before(one, divergence)]
    telling = [source for source in before if source.source not in _SELDOM_AT_FAULT]
    # What differed only later in the runs with notes may have differed earlier in the others.
    telling.sort(key=lambda one: not one.differs or one.records[0] > divergence.record)
    others = [source for source in before if source.source in _SELDOM_AT_FAULT]
    # Of what is often only logged, what was used last before the divergence is the more likely.
    others.sort(key=lambda one: (-one.records[0], -max(one.counts)))
    looks = [source for source in others if source.source == "clock"]
    of_others = [_by_source(source, divergence) for source in others if source.source != "clock"]
    if looks:
        of_others.append(_by_clock(looks, sources, divergence))
    of_telling = [_by_source(source, divergence) for source in telling]
    yield from [*of_others, *of_telling] if _is_seeded_by(others, telling) else [*of_telling, *of_others]


def _may_come_before(source: Source, divergence: Divergence) -> bool:
    """Whether a source was used before the divergence, or, going off at another time in each run, may have been."""
    is_elsewhere = source.recorded_as != divergence.process
    return is_elsewhere or source.source == _TIMER or source.records_at_first <= divergence.record


def _is_seeded_by(origins: Sequence[Source], sources: Sequence[Source]) -> bool:
    """Whether processes give themselves seeds of their own that something else makes: mending that leaves them apart."""
    if not any(source.source == "seed-value" and source.apart > 1 for source in sources):
        return False
    return any(code_fix(origin) is not None for origin in origins)


def _by_clock(looks: Sequence[Source], sources: Sequence[Source], divergence: Divergence) -> Hypothesis:
    """All looks at the clock together: a time that is held still must not be compared with one that is not."""
    held = frozenset(_held(source) for source in sources if source.source == "clock")
    sites = dict.fromkeys([*(source.site.frame for source in looks), *sites_of(divergence)])
    return Hypothesis("clock", Intervention(sources=held), tuple(sites), (use_text(looks[0]),), looks[0])


def _held(source: Source) -> FixedSource:
    return FixedSource(source.site.file, source.site.line, source.source)


def _by_source(source: Source, divergence: Divergence) -> Hypothesis:
    factor = _BY_FACTOR.get(source.source)
    if factor is not None:
        intervention = Intervention.fix(factor)
    else:
        intervention = Intervention(sources=frozenset({_held(source)}))
    site = source.site.frame
    sites = (site, *(other for other in sites_of(divergence) if (other.file, other.line) != (site.file, site.line)))
    cause = _BY_SOURCE[source.source]
    if cause == "hash-order" and source.elements == "objects":
        cause = "address-order"
    return Hypothesis(cause, intervention, sites, (use_text(source),), source)


def use_text(source: Source) -> str:
    """What was seen of a source, as a sentence."""
    times = "once" if max(source.counts) == 1 else f"{max(source.counts):,} times"
    used = f"{source.source} was used there {times}"
    if source.differs is False:
        return f"{used}; what it gives depends on timing, and was the same in two further runs."
    if source.differs is None:
        return f"{used}; whether its values differ cannot be told."
    if None in source.shown:
        return f"{used}, with other values in each of two further runs."
    first, second = (" ".join(str(text).split())[:_SHOWN] for text in source.shown)
    return f"{used}, with other values in each of two further runs: {first} and {second}."
