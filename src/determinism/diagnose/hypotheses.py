"""What may have made two runs differ, by what was recorded: the most telling first."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from determinism.comparison.divergence import Divergence
from determinism.comparison.result import Leftover
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.patched_op import may_be_patched
from determinism.diagnose.sources import Source
from determinism.factors.catalog import FACTORS
from determinism.probes.request import FixedSource
from determinism.trace.names import Frame
from determinism.types import Kind


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


_BY_SOURCE = {
    "set-order": "hash-order",
    "hash": "hash-value",
    "id": "address-order",
    "listing": "listing-order",
    "clock": "clock",
    "entropy": "entropy",
    "process-id": "process-id",
    "python-random": "seed-missing-python",
    "numpy-random": "seed-missing-numpy",
    "unseeded-generator": "generator-unseeded",
    "seed-value": "seed-varies",
    "completion-order": "completion-order",
    "loader-order": "completion-order",
    "queue-order": "queue-order",
    "uninitialized-array": "uninitialized-memory",
    "checkpoint-rng": "recomputed-randomness",
}

_BY_FACTOR = {"python-random": "python-seed", "numpy-random": "numpy-seed", "queue-order": "thread-schedule"}
"""Sources that are held still as a whole: a fixed value at one line would not be what a fix gives."""

_HELD_IN_PART = ("queue-order",)
"""Sources that go on to vary where processes are behind them, though threads take turns."""

_SHOWN = 60
_TENSORFLOW = "tf::"
_PIPELINES = ("tf::IteratorGetNext", "tf::OptionalGetValue")
"""Ops by which an element of a data pipeline comes in."""

_STARTS_BACKWARD = re.compile(r"\b(backward|grad)\(")

_SELDOM_AT_FAULT = ("clock", "process-id", "entropy", "id")
"""Sources that many programs only log."""

_FACTOR_CAUSES = (
    ("hash-seed", "hash-order"),
    ("torch-seed", "seed-missing-torch"),
    ("tensorflow-seed", "seed-missing-tensorflow"),
    ("python-seed", "seed-missing-python"),
    ("numpy-seed", "seed-missing-numpy"),
    ("entropy", "outside-entropy"),
    ("memory", "uninitialized-memory"),
    ("thread-schedule", "thread-race"),
    ("process-schedule", "thread-race"),
    ("workers", "worker-order"),
    ("pipeline-order", "pipeline-order"),
    ("pipeline-parallel", "pipeline-race"),
    ("deterministic-algorithms", "nondeterministic-op"),
    ("deterministic-ops", "varying-op-tensorflow"),
    ("tensorflow-threads", "varying-op-tensorflow"),
    ("threads", "nondeterministic-op"),
    ("listings", "listing-order"),
    ("addresses", "address-order"),
)
"""What is tried where nothing that was noted explains a divergence, cheapest and most frequent first."""

_FIRST_BY_KIND = {
    Kind.RNG: ("torch-seed", "tensorflow-seed"),
    Kind.UNINITIALIZED: ("memory",),
    Kind.OP: (
        *("deterministic-algorithms", "deterministic-ops", "patches"),
        *("threads", "tensorflow-threads", "addresses", "memory"),
    ),
    Kind.MUTATION: ("thread-schedule", "addresses"),
}
"""The factors that a kind of divergence points to."""


def hypotheses(
    divergence: Divergence,
    sources: Sequence[Source],
    *,
    leftovers: Sequence[Leftover],
    frameworks: Collection[str] = ("torch",),
) -> list[Hypothesis]:
    """Everything that may explain a divergence, the most telling first.

    Args:
        divergence: The first one.
        sources: What the program took from outside with other values in each run, in the order of the program.
        leftovers: Files that a run read and an earlier one had changed.
        frameworks: Those that the program was recorded with.
    """
    found = [
        *_leftover(divergence, leftovers),
        *_by_kind(divergence, sources),
        *_by_sources(divergence, sources),
        *_by_factors(divergence),
    ]
    found = [one for one in found if _takes_part(one, frameworks)]
    unique: dict[Intervention, Hypothesis] = {}
    for one in found:
        unique.setdefault(one.intervention, one)
    return list(unique.values())


def _takes_part(hypothesis: Hypothesis, frameworks: Collection[str]) -> bool:
    """Whether what is held still is there at all: a factor of another framework changes nothing."""
    return all(
        not FACTORS[name].frameworks or not set(FACTORS[name].frameworks).isdisjoint(frameworks)
        for name, _ in hypothesis.intervention.factors
    )


def is_open(one: Hypothesis, divergence: Divergence, tried: Collection[str]) -> bool:
    """Whether something that the program took from outside may still be the cause after experiments.

    Args:
        one: A hypothesis.
        divergence: The first one.
        tried: Names of the interventions that changed nothing.
    """
    if one.source is None:
        return False
    if one.source.source in _HELD_IN_PART:
        return bool(one.source.differs) or divergence.kind is Kind.ORDER
    return bool(one.source.differs) and one.intervention.name not in tried


def told_by_kind(divergence: Divergence) -> list[Hypothesis]:
    """What a divergence says of its cause by itself, where no experiment could show one."""
    evidence = _evidence(divergence)
    varies = any(output.distinct is not None and output.distinct > 1 for output in divergence.outputs)
    cause = {
        Kind.MUTATION: "changed-behind",
        Kind.UNINITIALIZED: "uninitialized-memory",
        Kind.OP: _varying(divergence) if varies else None,
    }.get(divergence.kind or Kind.DATA)
    return [] if cause is None else [Hypothesis(cause, Intervention(), _sites(divergence), evidence)]


def _varying(divergence: Divergence) -> str:
    return "varying-op-tensorflow" if divergence.op.startswith(_TENSORFLOW) else "nondeterministic-op"


def _leftover(divergence: Divergence, leftovers: Sequence[Leftover]) -> Iterator[Hypothesis]:
    if leftovers:
        evidence = tuple(
            f"Run {one.read_in} read {one.file}, which run {one.changed_in} had changed." for one in leftovers[:3]
        )
        opened = [one.site for one in leftovers if one.site is not None]
        sites = tuple(dict.fromkeys([*opened, *_sites(divergence)]))
        yield Hypothesis("leftover-file", Intervention(fresh_copy=True), sites, evidence)


def _by_kind(divergence: Divergence, sources: Sequence[Source]) -> Iterator[Hypothesis]:
    """What the kind points to; a generator that the program itself makes or seeds comes before the missing seed."""
    names = _FIRST_BY_KIND.get(divergence.kind, ()) if divergence.kind is not None else ()
    if divergence.op.startswith(_PIPELINES):
        names = ("pipeline-order", "pipeline-parallel")
    if divergence.kind is Kind.RNG and any(s.source in ("seed-value", "unseeded-generator") for s in sources):
        return
    if divergence.kind is Kind.UNINITIALIZED and divergence.allocated_at is not None:
        place = divergence.allocated_at
        held = FixedSource(place.file, place.line, "uninitialized-array")
        yield Hypothesis(
            "uninitialized-memory", Intervention(sources=frozenset({held})), _sites(divergence), _evidence(divergence)
        )
    for name in ("process-schedule", *names) if divergence.shares_memory else names:
        if name != "patches" or may_be_patched(divergence.op):
            yield _by_factor(name, divergence)


def _by_sources(divergence: Divergence, sources: Sequence[Source]) -> Iterator[Hypothesis]:
    before = [
        one for one in sources if one.recorded_as != divergence.process or one.records_at_first <= divergence.record
    ]
    telling = [source for source in before if source.source not in _SELDOM_AT_FAULT]
    # What differed only later in the runs with notes may have differed earlier in the others.
    telling.sort(key=lambda one: not one.differs or one.records[0] > divergence.record)
    others = [source for source in before if source.source in _SELDOM_AT_FAULT]
    # Of what is often only logged, what was used last before the divergence is the more likely.
    others.sort(key=lambda one: (-one.records[0], -max(one.counts)))
    for source in [*telling, *(one for one in others if one.source != "clock")]:
        yield _by_source(source, divergence)
    looks = [source for source in others if source.source == "clock"]
    if looks:
        yield _by_clock(looks, sources, divergence)


def _by_clock(looks: Sequence[Source], sources: Sequence[Source], divergence: Divergence) -> Hypothesis:
    """All looks at the clock together: a time that is held still must not be compared with one that is not."""
    held = frozenset(_held(source) for source in sources if source.source == "clock")
    sites = dict.fromkeys([*(source.site.frame for source in looks), *_sites(divergence)])
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
    sites = (site, *(other for other in _sites(divergence) if (other.file, other.line) != (site.file, site.line)))
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


def _by_factors(divergence: Divergence) -> Iterator[Hypothesis]:
    for name, _ in _FACTOR_CAUSES:
        if name != "process-schedule":  # It takes long, and only helps where processes share memory.
            yield _by_factor(name, divergence)


def _by_factor(name: str, divergence: Divergence) -> Hypothesis:
    cause = _varying(divergence) if name == "patches" else dict(_FACTOR_CAUSES)[name]
    if name == "addresses" and divergence.kind is Kind.OP:
        cause = "memory-alignment"
    if name == "thread-schedule" and (divergence.phase == "checkpoint" or divergence.saved_at is not None):
        cause = "torn-checkpoint"
    return Hypothesis(cause, Intervention.fix(name), _sites(divergence), _evidence(divergence))


def _sites(divergence: Divergence) -> tuple[Frame, ...]:
    """The lines that a divergence points to: where memory was allocated or saved, the call, its forward.

    The line that only starts the backward pass says less than the one whose gradient it is.
    """
    called: tuple[Frame | None, ...] = (divergence.site, divergence.forward_site)
    if divergence.site is not None and _STARTS_BACKWARD.search(divergence.site.code):
        called = (divergence.forward_site, divergence.site)
    found = (divergence.allocated_at, divergence.saved_at, *called)
    return tuple(dict.fromkeys(site for site in found if site is not None))


def _evidence(divergence: Divergence) -> tuple[str, ...]:
    found = []
    for output in divergence.outputs:
        if output.repeats is not None and output.distinct is not None and output.distinct > 1:
            found.append(
                f"{divergence.op} gave {output.distinct:,} distinct results in {output.repeats:,} repeats on equal inputs."
            )
            break
    if divergence.allocated_at is not None:
        found.append("The memory that was read had been allocated there, and no op had written it.")
    return tuple(found)
