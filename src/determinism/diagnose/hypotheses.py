"""Hypotheses about what made two runs differ, from the records and the text of the program: the most telling first.

The line where runs first differ is where a value was used. Its origin is sought in the program's own files: back from that line
through assignments, loops, parameters, attributes and functions, nearest first, to a call or an iteration whose result varies
between runs. The text is only read, never run, and until an experiment confirms it, what it names is only likely.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from determinism.comparison.divergence import Divergence, Status, is_repeatable, what_op_does
from determinism.comparison.result import Comparison, FileChange, Leftover
from determinism.diagnose.code_changes import code_fix, is_of_seed, source_of
from determinism.diagnose.experiments import Hypothesis, Intervention, calls_of, sites_of, stages_at_fault
from determinism.diagnose.parsed_module import Module, given_to
from determinism.diagnose.program_flow import Found, Program, RunningIn
from determinism.diagnose.sources import ANSWERED, LIBRARY_SEED, Source, library_evidence, library_sites, use_text
from determinism.environment import CHOICE_OF_KERNEL, EnvironmentDifference, fixes_hashes
from determinism.factors.catalog import FACTORS
from determinism.knowledge.entries import op_at
from determinism.knowledge.query import entries_for
from determinism.op_semantics import OpSemantics, framework_of
from determinism.run_spec import FixedSource
from determinism.source_files import Owner, owner_of_file, package_folder
from determinism.trace.process import Trace
from determinism.trace.schema import STEP_OP, Frame, Table
from determinism.types import Kind


def may_be_patched(op: str) -> bool:
    """Whether `determinism.patch` replaces an op, as far as is known for PyTorch; for TensorFlow, only the framework itself knows."""
    if framework_of(op) == "tensorflow":
        return True
    return any(op_at(entry).patches for name in _names(op) for entry in entries_for(name, "torch"))


def _names(op: str) -> list[str]:
    """Return an overload's name, and the names of the op that it belongs to or is the backward of."""
    namespace, _, rest = op.partition("::")
    name = rest.partition(".")[0].removesuffix("_backward").removesuffix("_forward")
    return [op, f"{namespace}::{name}", f"{namespace}::{name.removeprefix('_')}"]


# Sources whose values differ between runs, with the cause that each may be.

CAUSE_OF_SOURCE = {
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
    "process-queue": "queue-order",
    "timer": "timer",
    "uninitialized-array": "uninitialized-memory",
    "checkpoint-rng": "recomputed-randomness",
    "pipeline-order": "pipeline-order",
    "thread-update": "thread-race",
    "thread-draw": "shared-generator",
    "time-limit": "clock",
    "program-output": "program-output",
    "query-result": "query-result",
}

_BY_FACTOR = {
    "python-random": "python-seed",
    "numpy-random": "numpy-seed",
    "queue-order": "thread-schedule",
    "process-queue": "process-schedule",
    "thread-update": "thread-schedule",
    "thread-draw": "thread-schedule",
    "time-limit": "thread-schedule",
}
"""Sources fixed as a whole, because a fixed value at one line is not what a fix would use. Where threads take turns, no time limit expires."""

_SELDOM_AT_FAULT = ("clock", "process-id", "entropy", "id", "machine-state", "file-time", "program-output")
"""Sources that many programs only log."""


def source_hypotheses(
    divergence: Divergence, sources: Sequence[Source], unseeded: Sequence[str] = ()
) -> Iterator[Hypothesis]:
    """Yield the outside sources, given in program order, that may explain a divergence, the most telling first."""
    before = [one for one in sources if _may_come_before(one, divergence) and not one.is_in_library]
    telling = [source for source in before if source.source not in _SELDOM_AT_FAULT]
    # Sources that differed only later in the runs with notes may have differed earlier in the other runs.
    telling.sort(key=lambda one: not one.differs or one.records[0] > divergence.record)
    others = [source for source in before if source.source in _SELDOM_AT_FAULT]
    # Among sources that are often only logged, the one used last before the divergence is the likeliest.
    others.sort(key=lambda one: (-one.records[0], -max(one.counts)))
    is_seeded = any(source.source == "seed-value" for source in telling)
    # A constant there changes neither seeds that the user passes nor processes that add their rank.
    of_seeds = [source for source in others if is_seeded and is_of_seed(source)]
    yield from _by_seeds(of_seeds, divergence)
    others = [source for source in others if source not in of_seeds]
    looks = [source for source in others if source.source == "clock"]
    of_others = [_by_source(source, divergence) for source in others if source.source != "clock"]
    if looks:
        of_others.append(_by_clock(looks, sources, divergence))
    of_telling = [_by_source(source, divergence) for source in telling]
    # Libraries draw from these, too, and they may do so for the program's data.
    of_libraries = [_by_factor(f"{name}-seed", divergence) for name in unseeded if divergence.kind in _OUTSIDE]
    yield from [*of_telling, *of_libraries, *of_others]


def _by_libraries(divergence: Divergence, sources: Sequence[Source]) -> Iterator[Hypothesis]:
    """Yield the sources inside libraries: first those reached from a line of the program, since many draw on import, and that are known to differ."""
    of_libraries = [one for one in sources if _may_come_before(one, divergence) and one.is_in_library]
    for source in sorted(of_libraries, key=lambda one: (not one.led_by, not one.differs)):
        yield _by_source(source, divergence)


def _may_come_before(source: Source, divergence: Divergence) -> bool:
    """Whether a source was used before the divergence, or may have been: timers and threads have no order that is the same in each run."""
    is_elsewhere = source.recorded_as != divergence.process or divergence.stream is not None
    return is_elsewhere or source.source == "timer" or source.records_at_first <= divergence.record


def _by_seeds(of_seeds: Sequence[Source], divergence: Divergence) -> Iterator[Hypothesis]:
    """Yield, for each line that makes a seed, the hypothesis that the seed differs between runs."""
    lines: dict[tuple[str, int], list[Source]] = {}
    for source in of_seeds:
        lines.setdefault((source.site.file, source.site.line), []).append(source)
    for made in lines.values():
        held = Intervention(sources=frozenset(_held(source) for source in made))
        sites = sites_of(divergence, made[0].site.frame)
        yield Hypothesis("seed-varies", held, sites, (use_text(made[0]),), made[0])


def _by_clock(looks: Sequence[Source], sources: Sequence[Source], divergence: Divergence) -> Hypothesis:
    """Return one hypothesis for all reads of the clock: a fixed time must not be compared with one that is not."""
    held = frozenset(_held(source) for source in sources if source.source == "clock")
    sites = sites_of(divergence, *(source.site.frame for source in looks))
    return Hypothesis("clock", Intervention(sources=held), sites, (use_text(looks[0]),), looks[0])


def _held(source: Source) -> FixedSource:
    return FixedSource(source.site.file, source.site.line, source.source)


def without_source(held: FixedSource) -> Intervention:
    """Return what removes a source: the factor that fixes it everywhere, or else a fixed value at its line."""
    factor = _BY_FACTOR.get(held.source)
    return Intervention(sources=frozenset({held})) if factor is None else Intervention.fix(factor)


def _by_source(source: Source, divergence: Divergence) -> Hypothesis:
    intervention = without_source(_held(source))
    if source.is_in_library:
        sites = sites_of(divergence, *library_sites(source))
        return Hypothesis(LIBRARY_SEED, intervention, sites, library_evidence(source), source)
    site = source.site.frame
    sites = (site, *(other for other in sites_of(divergence) if (other.file, other.line) != (site.file, site.line)))
    cause = CAUSE_OF_SOURCE[source.source]
    if cause == "hash-order" and source.elements == "objects":
        cause = "address-order"
    return Hypothesis(cause, intervention, sites, (use_text(source),), source)


_QUEUE = "queue-order"

_WHERE_SEEN = ("process-schedule", "arrivals", "compile-caches", "kernel-choices", "xla-gpu-ops")
"""Factors that are slow, and tried only where what they affect was seen."""

_BY_ADDRESS = ("hash-seed", "addresses")
"""Factors that decide how objects are hashed and sorted."""

_FIRST_BY_KIND = {
    Kind.RNG: ("torch-seed", "tensorflow-seed"),
    Kind.UNINITIALIZED: ("memory",),
    Kind.OP: (
        *("deterministic-algorithms", "deterministic-ops", "patches"),
        *("threads", "tensorflow-threads", "addresses", "memory"),
    ),
    Kind.MUTATION: ("thread-schedule", "addresses"),
}
"""The factors that each kind of divergence points to."""


def hypotheses(
    divergence: Divergence,
    sources: Sequence[Source],
    *,
    leftovers: Sequence[Leftover],
    environment: Sequence[EnvironmentDifference] = (),
    frameworks: Collection[str] = ("torch",),
    changed_files: Sequence[str] = (),
    unseeded: Sequence[str] = (),
) -> list[Hypothesis]:
    """Return everything that may explain a divergence, the most telling first.

    Args:
        divergence: The first divergence.
        sources: Outside sources whose values differ between runs, in program order.
        leftovers: Files that a run read and an earlier run had changed.
        environment: The differences between the environments of the runs.
        frameworks: The frameworks that were recorded.
        changed_files: Files that the runs changed in the working directory, whether or not a later one was seen to read them.
        unseeded: The global generators, such as `numpy` or `python`, that were not seeded before.
    """
    draws_in_turn = divergence.kind is Kind.RNG and any(source.source == _QUEUE for source in sources)
    if draws_in_turn:
        # Items in another order would themselves be the first difference: here a thread drew what another thread draws in the other run.
        sources = [source for source in sources if source.source != _QUEUE]
    found = [
        *_by_choices(divergence, environment),
        *_leftover(divergence, leftovers),
        *_by_arrival(divergence),
        *_by_threads(divergence),
        *_by_kind(divergence, sources),
        *([_by_factor("thread-schedule", divergence)] if draws_in_turn else ()),
        *source_hypotheses(divergence, sources, unseeded),
        *_by_xla(divergence),
        *(_by_schedules(divergence, sources) if is_beside(divergence) else ()),
        *_by_libraries(divergence, sources),
        *_by_changed_files(divergence, changed_files),
        *_by_caches(divergence, leftovers),
        *_by_schedules(divergence, sources),
        *_by_factors(divergence),
    ]
    found = [one for one in found if _takes_part(one, frameworks) and not _only_seems_to_help(one, divergence)]
    unique: dict[Intervention, Hypothesis] = {}
    for one in found:
        unique.setdefault(one.intervention, one)
    return list(unique.values())


def _takes_part(hypothesis: Hypothesis, frameworks: Collection[str]) -> bool:
    """Whether what is fixed exists at all: a factor of another framework changes nothing."""
    return all(
        not FACTORS[name].frameworks or not set(FACTORS[name].frameworks).isdisjoint(frameworks)
        for name, _ in hypothesis.intervention.factors
    )


VARYING_OPS = frozenset({"nondeterministic-op", "varying-op-tensorflow", "varying-op-jax"})
"""Causes in which an op gives different results on equal inputs, with nothing else running."""


def varies_alone(divergence: Divergence) -> bool:
    """Whether the op of a divergence was seen to vary when repeated on copies of its inputs."""
    return any(output.distinct is not None and output.distinct > 1 for output in divergence.outputs)


def may_vary_alone(divergence: Divergence) -> bool:
    """Whether the op varied when repeated, or is not a single op (such as a compiled graph) and so cannot be repeated."""
    return varies_alone(divergence) or (divergence.kind is Kind.OP and not is_repeatable(divergence.op))


def is_varying_kernel(divergence: Divergence) -> bool:
    """Whether the op is a kernel of the program that was seen to vary when repeated by itself."""
    return varies_alone(divergence) and OpSemantics.WRITES_IN_PART in what_op_does(divergence.op)


KERNEL_LIMIT = "No setting makes the kernel deterministic, so no run could show whether the program has further causes."


_NOT_BY_AN_OP = frozenset({Kind.ARGUMENT, Kind.ORDER, Kind.RNG, Kind.STRUCTURE, Kind.UNINITIALIZED})
"""Kinds of divergence that arise before an op computes: an op that varies would have been the first difference."""


def _only_seems_to_help(one: Hypothesis, divergence: Divergence) -> bool:
    """Whether fixing an op may only seem to help.

    Other algorithms and fewer threads also change when threads meet; where no op is to blame, runs with them are equal by chance.
    """
    is_elsewhere = divergence.kind is Kind.MUTATION or is_beside(divergence) or divergence.kind in _NOT_BY_AN_OP
    return one.cause in VARYING_OPS and is_elsewhere and not varies_alone(divergence)


def open_status(one: Hypothesis, divergence: Divergence, is_tried: Callable[[Intervention], bool]) -> Status | None:
    """Return how certain it is that a hypothesis is the cause, given which interventions changed nothing; None if it is not."""
    if one.source is None:
        is_about_threads = one.intervention == Intervention.fix("thread-schedule") and is_beside(divergence)
        is_open = is_about_threads and not is_tried(one.intervention)
    elif one.source.source in ANSWERED:
        # No experiment fixes all of it. Different output matters only where the program computes with it.
        return Status.LIKELY if one.source.differs and _is_made_of(divergence, one.source) else None
    elif one.source.source == _QUEUE:
        # It still varies where threads take turns, if processes are behind it.
        is_open = bool(one.source.differs) or divergence.kind is Kind.ORDER
    else:
        is_open = bool(one.source.differs) and not is_tried(one.intervention)
    return Status.POSSIBLE if is_open else None


def _is_made_of(divergence: Divergence, source: Source) -> bool:
    """Whether, judging by the program's text, what differs is computed from a source's value."""
    lines = recorded_lines(divergence, ())
    lines.setdefault(source.site.file, set()).add((source.site.frame.line, source.site.code))
    program = read_program(
        lines, began=math.inf, frameworks=frozenset({"torch", "tensorflow", "jax"}), has_fixed_hashes=True
    )
    is_of_path = divergence.kind in (Kind.STRUCTURE, Kind.ARGUMENT)
    return program is not None and any(
        program.comes_from(
            list(program.statement_at(frame.file, frame.line, conditions=is_of_path)),
            source.site.file,
            source.site.line,
            source.site.column,
        )
        for frame in divergence.stack[:_MOST_FRAMES]
    )


def hypotheses_of_kind(divergence: Divergence) -> list[Hypothesis]:
    """Return what the kind of a divergence alone says about its cause, where no experiment could show one."""
    evidence = _evidence(divergence)
    if divergence.received_at is not None:
        return [Hypothesis("arrival-order", Intervention(), _arrival_sites(divergence), evidence)]
    if divergence.shares_memory:
        return [Hypothesis("process-race", Intervention.fix("process-schedule"), sites_of(divergence), evidence)]
    cause = {
        Kind.MUTATION: "changed-behind",
        Kind.UNINITIALIZED: "uninitialized-memory",
        Kind.OP: _varying(divergence) if varies_alone(divergence) else None,
    }.get(divergence.kind or Kind.DATA)
    return [] if cause is None else [Hypothesis(cause, Intervention(), sites_of(divergence), evidence)]


def _varying(divergence: Divergence) -> str:
    if is_varying_kernel(divergence):
        return "varying-triton-kernel"
    if framework_of(divergence.op) == "jax":
        return "varying-op-jax"
    return "varying-op-tensorflow" if framework_of(divergence.op) == "tensorflow" else "nondeterministic-op"


def _leftover(divergence: Divergence, leftovers: Sequence[Leftover]) -> Iterator[Hypothesis]:
    if others := [one for one in leftovers if one.cache is None]:
        sites = _opened(divergence, others)
        yield Hypothesis("leftover-file", Intervention(fresh_copy=True), sites, _leftover_texts(others))


def _by_changed_files(divergence: Divergence, changed_files: Sequence[str]) -> Iterator[Hypothesis]:
    """Yield the hypothesis that a run read, unseen, what an earlier one wrote: libraries such as HDF5's may open files in C."""
    if changed_files and divergence.kind in _OUTSIDE and not is_beside(divergence):
        shown = ", ".join(changed_files[:_MOST_LEFTOVERS])
        more = len(changed_files) - _MOST_LEFTOVERS
        evidence = f"The runs changed {shown}{f' and {more} more files' if more > 0 else ''}; no reads were seen."
        yield Hypothesis("leftover-file", Intervention(fresh_copy=True), sites_of(divergence), (evidence,))


def _by_caches(divergence: Divergence, leftovers: Sequence[Leftover]) -> Iterator[Hypothesis]:
    """Yield files of compile caches, which copying a folder does not hide; every second run of a compiled program reads some."""
    if kept := [one for one in leftovers if one.cache is not None]:
        owners = " and ".join(dict.fromkeys(str(one.cache) for one in kept))
        place = f"{'It is' if len(kept) == 1 else 'They are'} in the compile cache of {owners}."
        evidence = (*_leftover_texts(kept), place)
        intervention = Intervention.fix("compile-caches")
        yield Hypothesis("warm-compile-cache", intervention, _opened(divergence, kept), evidence)


_MOST_LEFTOVERS = 3


def _leftover_texts(leftovers: Sequence[Leftover]) -> tuple[str, ...]:
    return tuple(
        f"Run {one.read_in} read {one.file}, which changed during run {one.changed_in}, perhaps by another process."
        if one.change is FileChange.UNSEEN
        else f"Run {one.read_in} read {one.file}, which run {one.changed_in} had {one.change}."
        for one in leftovers[:_MOST_LEFTOVERS]
    )


def _opened(divergence: Divergence, leftovers: Sequence[Leftover]) -> tuple[Frame, ...]:
    return sites_of(divergence, *(one.site for one in leftovers))


def _by_choices(divergence: Divergence, environment: Sequence[EnvironmentDifference]) -> Iterator[Hypothesis]:
    """Yield the hypothesis that the runs chose different kernels for the same work, as they noted themselves."""
    if chosen := [one for one in environment if one[0].startswith(CHOICE_OF_KERNEL)]:
        evidence = [
            f"For {name.removeprefix(CHOICE_OF_KERNEL)} one run chose {first}, the other {second}."
            for name, first, second in chosen[:_MOST_LEFTOVERS]
        ]
        yield Hypothesis("kernel-choice", Intervention.fix("kernel-choices"), sites_of(divergence), tuple(evidence))


def _by_xla(divergence: Divergence) -> Iterator[Hypothesis]:
    """Yield what only XLA on a GPU does: kernels that add in any order, and kernels chosen because they were fastest this time."""
    is_on_gpu = any(one.device == "gpu" for one in divergence.outputs) and framework_of(divergence.op) == "jax"
    if is_on_gpu and divergence.kind in (Kind.OP, Kind.ARGUMENT):
        held = _by_factor("xla-gpu-ops", divergence)
        yield held if divergence.kind is Kind.OP else replace(held, cause="compiled-differently")


def _by_kind(divergence: Divergence, sources: Sequence[Source]) -> Iterator[Hypothesis]:
    """Yield what the kind points to; a generator that the program makes or seeds itself comes before a missing seed."""
    names = _FIRST_BY_KIND.get(divergence.kind, ()) if divergence.kind is not None else ()
    if OpSemantics.TAKES_ELEMENT in what_op_does(divergence.op):
        names = ("pipeline-order", "pipeline-parallel")
        if any(source.source == "pipeline-order" for source in sources):
            return
    own = {one.source for one in sources if one.source == "seed-value" or not one.is_in_library}
    if divergence.kind is Kind.RNG and own & {"seed-value", "unseeded-generator"}:
        return
    if divergence.kind is Kind.UNINITIALIZED and divergence.allocated_at is not None:
        place = divergence.allocated_at
        held = FixedSource(place.file, place.line, "uninitialized-array")
        yield Hypothesis(
            "uninitialized-memory", Intervention(sources=frozenset({held})), sites_of(divergence), _evidence(divergence)
        )
    names = ("process-schedule", *names) if divergence.shares_memory else names
    yield from (_by_factor(name, divergence) for name in names if name != "patches" or may_be_patched(divergence.op))


def _by_arrival(divergence: Divergence) -> Iterator[Hypothesis]:
    """Yield the hypothesis that a value came from whichever process sent first, as the runs themselves show."""
    if divergence.received_at is not None:
        yield Hypothesis("arrival-order", Intervention.fix("arrivals"), _arrival_sites(divergence))


def _by_threads(divergence: Divergence) -> Iterator[Hypothesis]:
    """Yield a thread race for an op of a thread with equal inputs that did not vary alone: usually another thread writes what it reads."""
    if divergence.kind is Kind.OP and divergence.stream is not None and not varies_alone(divergence):
        yield _by_factor("thread-schedule", divergence)


def _arrival_sites(divergence: Divergence) -> tuple[Frame, ...]:
    return sites_of(divergence, divergence.received_at)


def _by_schedules(divergence: Divergence, sources: Sequence[Source]) -> Iterator[Hypothesis]:
    """Yield what timing decides, to be tried before anything unrelated to threads or processes."""
    for source in sources:
        if source.source == _QUEUE:
            # Only threads can take turns; processes that fill a queue run one after the other.
            held = Intervention.fix("process-schedule")
            yield replace(_by_source(source, divergence), intervention=held, source=None)
    if is_beside(divergence):
        yield _by_factor("thread-schedule", divergence)
    if divergence.process.rpartition(".")[2].startswith("worker-"):
        # Workers may share more than memory, such as a cache that the first to arrive fills.
        yield _by_factor("workers", divergence)


def is_beside(divergence: Divergence) -> bool:
    """Whether it is in a thread other than the main one, or in a stream whose records have no order of their own."""
    return divergence.thread is not None or divergence.stream is not None


def _by_factors(divergence: Divergence) -> Iterator[Hypothesis]:
    # Numbers that no seed fixes appear as data, or as the state of a generator.
    first = _BY_ADDRESS if divergence.kind in (Kind.ARGUMENT, Kind.ORDER) else ()
    for name in dict.fromkeys((*first, *FACTORS)):
        if FACTORS[name].cause is not None and name not in _WHERE_SEEN:
            if name == "forked-seed" and divergence.kind not in _OUTSIDE:
                continue
            yield _by_factor(name, divergence)


def _by_factor(name: str, divergence: Divergence) -> Hypothesis:
    cause = FACTORS[name].cause or _varying(divergence)
    if name == "addresses" and divergence.kind is Kind.OP:
        cause = "memory-alignment"
    if name == "thread-schedule" and (divergence.phase == "checkpoint" or divergence.saved_at is not None):
        cause = "torn-checkpoint"
    elif name == "thread-schedule" and _may_be_drawn_in_turn(divergence):
        cause = "shared-generator"
    intervention = Intervention.fix(name)
    if cause == "address-order":
        # The salt of strings changes what is allocated, and thus every later address.
        intervention = intervention.also(Intervention.fix("hash-seed"))
    sites = sites_of(divergence, *stages_at_fault(name, divergence))
    return Hypothesis(cause, intervention, sites, _evidence(divergence), calls=calls_of(sites, divergence))


_DRAWS = re.compile(r"\bgenerator=|\b(rand\w*|normal_?|bernoulli_?|multinomial|uniform_|exponential_)\(")


def _may_be_drawn_in_turn(divergence: Divergence) -> bool:
    """Whether what threads got in another order may be random numbers: each draws what another thread draws in the other run."""
    if divergence.kind is Kind.ORDER and divergence.thread is not None and divergence.site is not None:
        return _DRAWS.search(divergence.site.code) is not None
    return divergence.kind is Kind.RNG


_ORDERS = ("hash-order", "address-order")
_TURNS = (
    "In the experiment all threads take turns, so that none waits too long; the line comes from the program's source."
)
_BY_TEXT = {
    **dict.fromkeys(
        _ORDERS, "The experiment fixes every such order in the program; the line comes from the program's source."
    ),
    "thread-race": _TURNS,
    "shared-generator": _TURNS,
    "clock": _TURNS,
}
"""The evidence shown where a factor of the whole program is tried, and the text shows the line."""


def with_likely_lines(candidates: Sequence[Hypothesis], likely: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Put likely candidates first; a factor for an order, or for which thread comes first, gets the line that it concerns."""
    lines = {cause: site for one in likely if one.sites for cause in _alike(one.cause) for site in one.sites[:1]}
    by_text = {one.intervention: one for one in likely if one.intervention.factors and not one.intervention.sources}

    def named(one: Hypothesis) -> Hypothesis:
        told = by_text.get(one.intervention)
        # For a checkpoint that was seen to be torn, the kind is more precise than the text.
        cause = told.cause if told is not None and one.cause == "thread-race" else one.cause
        if one.source is not None or cause not in lines:
            return one
        sites = tuple(dict.fromkeys([lines[cause], *one.sites]))
        return replace(one, cause=cause, sites=sites, evidence=(_BY_TEXT[cause], *one.evidence))

    def is_likely(one: Hypothesis) -> bool:
        # A source of a seed, such as the clock, is best described by its purpose.
        is_seed = one.cause == "seed-varies" and bool(likely)
        return (
            is_seed
            or any(is_same(one, other) for other in likely)
            or (one.cause in lines and (one.source is None or one.cause in _ORDERS))
        )

    return sorted(map(named, candidates), key=lambda one: not is_likely(one))


def _alike(cause: str) -> tuple[str, ...]:
    """Return the causes whose line may be that of another, likely cause."""
    return _ORDERS if cause in _ORDERS else (cause,) if cause in _BY_TEXT else ()


def is_used_at(one: Hypothesis, divergence: Divergence) -> bool:
    """Whether the program's own code iterates a set, or uses another source, on a line of the divergence's stack."""
    if one.source is None or one.source.is_in_library or one.source.source in _SELDOM_AT_FAULT:
        return False
    return any((one.source.site.file, one.source.site.line) == (at.file, at.line) for at in divergence.stack)


def is_same(one: Hypothesis, other: Hypothesis) -> bool:
    """Whether two hypotheses concern the same thing, which one fixes at its line and the other perhaps as a whole."""
    if one.intervention == other.intervention:
        return True
    places = {(held.file, held.line) for held in one.intervention.sources}
    return bool(places & {(site.file, site.line) for site in other.sites[:1]})


def _evidence(divergence: Divergence) -> tuple[str, ...]:
    found = []
    for output in divergence.outputs:
        if output.repeats is not None and output.distinct is not None and output.distinct > 1:
            found.append(
                f"{divergence.op} gave {output.distinct:,} distinct results in {output.repeats:,} repeats on equal inputs."
            )
            break
    if divergence.allocated_at is not None:
        found.append("The memory that was read had been allocated there, and no op had written to it.")
    return tuple(found)


# What most likely made runs differ, judging only by the records and the text.

_MOST_FRAMES = 4
_MOST_FILES = 60
_OUTSIDE = frozenset({Kind.DATA, Kind.ARGUMENT, Kind.STRUCTURE, Kind.ORDER})
"""Kinds of divergence that begin outside the framework, where the text can show the origin."""


def _changed_before(file: str, moment: float) -> bool:
    try:
        return os.path.getmtime(file) < moment
    except OSError:
        return False


def read_program(
    lines: Mapping[str, set[tuple[int, str]]],
    *,
    began: float,
    frameworks: frozenset[str],
    has_fixed_hashes: bool,
    running_in: RunningIn = lambda _: None,
) -> Program | None:
    """Read the files of a program: those that were recorded, and its own files that they import.

    Args:
        lines: The recorded lines by file, with their code.
        began: When the run began, in seconds since 1970. An unrecorded file that changed since is left out.
        frameworks: The recorded frameworks; they may be next to the program, but are not part of it.
        has_fixed_hashes: Whether strings have the same hashes in each run.
        running_in: See `Program`.

    Returns:
        The program; None if no recorded file is as it was when it ran.
    """
    read = [Module.read(file) for file in list(lines)[:_MOST_FILES]]
    # A trace may be older than the files, or from another machine.
    modules = [module for module in read if module is not None and module.has(lines[module.file])]
    known = {module.file for module in modules} | set(lines)
    for module in modules:
        for file in module.imported_files():
            if not frameworks.isdisjoint(Path(file).with_suffix("").parts[-4:]):
                continue
            if len(modules) < _MOST_FILES and file not in known and _changed_before(file, began):
                known.add(file)
                imported = Module.read(file)
                # The loop reaches this module, too.
                modules += [imported] if imported is not None else []
    return Program(modules, has_fixed_hashes=has_fixed_hashes, running_in=running_in) if modules else None


def recorded_lines(divergence: Divergence, traces: Sequence[Trace]) -> dict[str, set[tuple[int, str]]]:
    """Return the lines that were recorded, by file: number and code of each. Some are of libraries, called by the program."""
    lines: dict[str, set[tuple[int, str]]] = {}
    for frame in _recorded_frames(divergence, traces):
        lines.setdefault(frame.file, set()).add((frame.line, frame.code))
    return lines


def _recorded_frames(divergence: Divergence, traces: Sequence[Trace]) -> Iterator[Frame]:
    yield from divergence.stack
    for process in traces[0].processes if traces else ():
        yield from map(process.names.frame, process.names.texts(Table.FRAME))


def _functions_of_libraries(divergence: Divergence, traces: Sequence[Trace]) -> RunningIn:
    """Return what tells the functions of a library's file that were seen running; for the program's own files, it returns None."""
    own = package_folder(divergence.site.file) if divergence.site is not None else None
    functions: dict[str, set[str]] = {}
    for frame in _recorded_frames(divergence, traces):
        functions.setdefault(frame.file, set()).add(frame.function.rpartition(".")[2])

    def running_in(file: str) -> Collection[str] | None:
        # A program that is itself installed is its own package.
        is_of_library = owner_of_file(file) is Owner.LIBRARY and (own is None or package_folder(file) != own)
        return functions.get(file, ()) if is_of_library else None

    return running_in


def likely_hypotheses(comparison: Comparison, traces: Sequence[Trace]) -> list[Hypothesis]:
    """Return what most likely made two runs differ, judging by the records and the program's text.

    Returns:
        Only the likeliest; none if nothing points to one.
    """
    divergence = comparison.first_divergence
    of_threads = [one for one in comparison.environment if "num_threads" in one[0]]
    is_elsewhere = comparison.varied or comparison.leftovers or (comparison.environment and not of_threads)
    if divergence is None or not traces or is_elsewhere:
        return []
    processes = traces[0].processes
    has_threads = any("threads" in (one.description.get("racy") or ()) for one in processes)
    told = _by_itself(divergence, has_threads) or (_by_other_threads(comparison, divergence) if has_threads else [])
    if told or divergence.site is None:
        return told
    facts = next((p.description.get("environment") or {} for p in processes if p.key == divergence.process), {})
    # The program may set the variable itself, but too late: its value at the start counts.
    is_fixed = facts.get("hash randomization") == "False" or fixes_hashes(os.environ)
    lines = recorded_lines(divergence, traces)
    began = traces[0].manifest.get("created") or 0.0
    frameworks = frozenset(str(one.description.get("framework")) for one in processes)
    program = read_program(
        lines,
        began=float(began),
        frameworks=frameworks,
        has_fixed_hashes=is_fixed,
        running_in=_functions_of_libraries(divergence, traces),
    )
    if program is None:
        return []
    if of_threads:
        return _of_number_of_threads(divergence, program)
    if divergence.kind is Kind.RNG:
        found = _of_generator(divergence, program)
    elif divergence.kind in _OUTSIDE:
        found = _of_values(divergence, program) or _of_keras(divergence, program)
    else:
        found = []
    # Every rank runs what the text shows.
    ranks = sum(part.startswith("rank-") for process in processes for part in process.key.split(".")[1:2])
    return [
        one if one.source is None or ranks < 2 else replace(one, source=replace(one.source, apart=ranks))
        for one in found
    ]


def _by_itself(divergence: Divergence, has_threads: bool) -> list[Hypothesis]:
    """Return what the kind of a divergence says without looking at the text."""
    is_by_threads = divergence.thread is not None or has_threads
    if divergence.kind is Kind.MUTATION and divergence.saved_at is None and is_by_threads:
        return [Hypothesis("thread-race", Intervention.fix("thread-schedule"), sites_of(divergence))]
    if divergence.kind in (Kind.UNINITIALIZED, Kind.MUTATION) or divergence.received_at is not None:
        return hypotheses_of_kind(divergence)
    return []


def _by_other_threads(comparison: Comparison, divergence: Divergence) -> list[Hypothesis]:
    """Blame another thread where no op of the main thread changed a value held at the end of a step, and that thread differs, too."""
    sites_apart = [one.site for one in comparison.divergences if one.thread is not None]
    others = [site for site in (*sites_apart, *(one.site for one in comparison.dead_first)) if site is not None]
    if divergence.kind is not Kind.DATA or divergence.op != STEP_OP or divergence.thread is not None or not others:
        return []
    sites = sites_of(divergence, others[0])
    evidence = "No op of the main thread made the value; another value that differs was made at that line."
    return [Hypothesis("thread-race", Intervention.fix("thread-schedule"), sites, (evidence,))]


def _of_generator(divergence: Divergence, program: Program) -> list[Hypothesis]:
    """Explain a framework's generator in a different state: it was never seeded, or with a value that differs."""
    library = framework_of(divergence.op)
    if library not in ("torch", "tensorflow") or ".generator" in divergence.op:
        return []
    if any("generator=" in frame.code for frame in divergence.stack[:_MOST_FRAMES]):
        # Many ops that take a generator have no overload named after it.
        return []
    calls = program.seedings(library)
    if not calls:
        if program.names_seeding(library):
            return []
        cause = f"seed-missing-{library}"
        evidence = f"No recorded file of the program seeds {'PyTorch' if library == 'torch' else 'TensorFlow'}."
        sites = sites_of(divergence)
        seeded, led = Intervention.fix(f"{library}-seed"), calls_of(sites, divergence)
        return [Hypothesis(cause, seeded, sites, (evidence,), calls=led)]
    for module, call in calls:
        origin = program.back_from([(module, one) for one in given_to(call)])
        if origin is not None:
            return [_of_seed(module.frame(call), origin, divergence)]
    return []


def _of_seed(seeding: Frame, origin: Found, divergence: Divergence) -> Hypothesis:
    """Return the hypothesis that a seed differs between runs, at the line where it is made, if a constant can replace it there, or else where it is set."""
    frame = origin.frame
    uses = [
        source_of(call, FixedSource(origin.file, call.lineno, source), origin.code) for source, call in origin.beside
    ]
    made = [one for one in uses if is_of_seed(one)]
    if made:
        held = frozenset(_held(one) for one in made)
        sites = sites_of(divergence, frame, seeding)
        evidence = f"{seeding.code} at {Path(seeding.file).name}:{seeding.line} uses it as the seed."
        return Hypothesis("seed-varies", Intervention(sources=held), sites, (evidence,), made[0])
    for one in uses:
        if one.source == "hash" and code_fix(one) is not None:
            return _by_source(one, divergence)
    sites = sites_of(divergence, seeding, frame)
    set_there = FixedSource(seeding.file, seeding.line, "seed-value")
    evidence = f"The seed comes from {origin.code} at {Path(origin.file).name}:{origin.line}."
    return Hypothesis("seed-varies", Intervention(sources=frozenset({set_there})), sites, (evidence,))


def _of_values(divergence: Divergence, program: Program) -> list[Hypothesis]:
    """Explain a value from outside the framework by what a line upstream of its use took in."""
    is_of_path = divergence.kind in (Kind.STRUCTURE, Kind.ARGUMENT)
    ways = (
        program.statement_at(frame.file, frame.line, conditions=is_of_path) for frame in divergence.stack[:_MOST_FRAMES]
    )
    found = next((one for way in ways if (one := program.back_from(list(way))) is not None), None)
    if found is None:
        return []
    cause = "address-order" if found.has_objects else CAUSE_OF_SOURCE[found.source]
    evidence = "According to the program's source, the differing value comes from there."
    intervention = without_source(FixedSource(found.file, found.line, found.source))
    return [Hypothesis(cause, intervention, sites_of(divergence, found.frame), (evidence,))]


_KERAS_SEEDS = ("uint32", "int64", "int32")
"""The dtype of seeds with JAX, TensorFlow and PyTorch as the backend: `random_seed_dtype` of Keras 3.15."""


def _of_keras(divergence: Divergence, program: Program) -> list[Hypothesis]:
    """Explain a seed that no line made by Keras, which draws two whole numbers from Python's generator for each layer."""
    is_seed = any(output.shape == (2,) and output.dtype in _KERAS_SEEDS for output in divergence.outputs)
    if not is_seed or not program.names_keras() or program.seedings("random"):
        return []
    evidence = "Keras takes its seeds from Python's generator, and no recorded file of the program seeds that."
    seeded = Intervention.fix("python-seed")
    return [Hypothesis("seed-missing-python", seeded, sites_of(divergence), (evidence,))]


def _of_number_of_threads(divergence: Divergence, program: Program) -> list[Hypothesis]:
    """Explain a number of computing threads that the program sets differently in each run."""
    for module, call in program.callers.get("set_num_threads", ()):
        origin = program.back_from([(module, one) for one in given_to(call)])
        if origin is not None:
            held = without_source(FixedSource(origin.file, origin.line, origin.source))
            sites = sites_of(divergence, origin.frame, module.frame(call))
            evidence = (f"It decides how many threads compute, at {Path(module.file).name}:{call.lineno}.",)
            return [Hypothesis(CAUSE_OF_SOURCE[origin.source], held, sites, evidence)]
    return []
