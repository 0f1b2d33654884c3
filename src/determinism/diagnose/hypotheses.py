"""What may have made two runs differ, by what was recorded: the most telling first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from determinism.comparison.divergence import Divergence
from determinism.comparison.result import FileChange, Leftover
from determinism.diagnose.hypothesis import Hypothesis, sites_of
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.patched_op import may_be_patched
from determinism.diagnose.source_hypotheses import source_hypotheses
from determinism.diagnose.sources import Source
from determinism.factors.catalog import FACTORS
from determinism.probes.request import FixedSource
from determinism.types import Kind

_HELD_IN_PART = ("queue-order",)
"""Sources that go on to vary where processes are behind them, though threads take turns."""

_TENSORFLOW = "tf::"
_PIPELINES = ("tf::IteratorGetNext", "tf::OptionalGetValue")
"""Ops by which an element of a data pipeline comes in."""

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
        *source_hypotheses(divergence, sources),
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
    return [] if cause is None else [Hypothesis(cause, Intervention(), sites_of(divergence), evidence)]


def _varying(divergence: Divergence) -> str:
    return "varying-op-tensorflow" if divergence.op.startswith(_TENSORFLOW) else "nondeterministic-op"


def _leftover(divergence: Divergence, leftovers: Sequence[Leftover]) -> Iterator[Hypothesis]:
    if leftovers:
        evidence = tuple(
            f"Run {one.read_in} read {one.file}, which changed during run {one.changed_in}, perhaps by another process."
            if one.change is FileChange.UNSEEN
            else f"Run {one.read_in} read {one.file}, which run {one.changed_in} had {one.change}."
            for one in leftovers[:3]
        )
        opened = [one.site for one in leftovers if one.site is not None]
        sites = tuple(dict.fromkeys([*opened, *sites_of(divergence)]))
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
            "uninitialized-memory", Intervention(sources=frozenset({held})), sites_of(divergence), _evidence(divergence)
        )
    for name in ("process-schedule", *names) if divergence.shares_memory else names:
        if name != "patches" or may_be_patched(divergence.op):
            yield _by_factor(name, divergence)


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
    return Hypothesis(cause, Intervention.fix(name), sites_of(divergence), _evidence(divergence))


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
