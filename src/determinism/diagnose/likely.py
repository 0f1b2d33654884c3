"""Names at once, before any experiment, what most likely made two runs differ: from what was recorded and the text of the program.

The line where runs first differ is where a value was used. Where it came from is looked for in the program's own files: back
from that line through assignments, loops, parameters, attributes and functions, nearest first, to a call or an iteration that gives
something else in each run. The text is only read, never run, and what it names is only likely.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from determinism.comparison.result import Comparison, Divergence
from determinism.diagnose.experiments import Hypothesis, Intervention, sites_of
from determinism.diagnose.hypotheses import CAUSE_OF_SOURCE, told_by_kind, without_source
from determinism.diagnose.program_flow import Found, Module, Program, fixes_hashes, given_to
from determinism.op_semantics import framework_of
from determinism.run_spec import FixedSource
from determinism.trace.reader import Trace
from determinism.trace.schema import Frame, Table
from determinism.types import Kind

_MOST_FILES = 60
_MOST_FRAMES = 4
_OUTSIDE = frozenset({Kind.DATA, Kind.ARGUMENT, Kind.STRUCTURE, Kind.ORDER})
"""Kinds of divergences that begin outside of the framework, so that the text can say where."""


def likely_hypotheses(comparison: Comparison, traces: Sequence[Trace]) -> list[Hypothesis]:
    """What most likely made two runs differ, as far as the records and the program's text show it.

    Args:
        comparison: Of the runs.
        traces: Of the same runs.

    Returns:
        The likeliest alone; none if nothing points to one.
    """
    divergence = comparison.first_divergence
    if divergence is None or not traces or comparison.varied or comparison.leftovers or comparison.environment:
        return []
    told = _by_itself(divergence)
    if told or divergence.site is None:
        return told
    processes = traces[0].processes
    facts = next((p.description.get("environment") or {} for p in processes if p.key == divergence.process), {})
    # The program may set the variable itself, which comes too late: what it was started with counts.
    is_fixed = facts.get("hash randomization") == "False" or fixes_hashes(os.environ)
    lines = recorded_lines(divergence, traces)
    read = [Module.read(file) for file in list(lines)[:_MOST_FILES]]
    # A trace may be older than the files, or from another machine.
    modules = [module for module in read if module is not None and module.has(lines[module.file])]
    if not modules:
        return []
    program = Program(modules, has_fixed_hashes=is_fixed)
    if divergence.kind is Kind.RNG:
        return _of_generator(divergence, program)
    return _of_values(divergence, program) if divergence.kind in _OUTSIDE else []


def recorded_lines(divergence: Divergence, traces: Sequence[Trace]) -> dict[str, set[tuple[int, str]]]:
    """The lines of the program that were recorded, by file: number and code of each.

    Args:
        divergence: Where the runs differ first.
        traces: Of the runs.
    """
    processes = traces[0].processes if traces else ()
    recorded = [one.names.frame(text) for one in processes for text in one.names.texts(Table.FRAME)]
    lines: dict[str, set[tuple[int, str]]] = {}
    for frame in [*divergence.stack, *recorded]:
        lines.setdefault(frame.file, set()).add((frame.line, frame.code))
    return lines


def _by_itself(divergence: Divergence) -> list[Hypothesis]:
    """What the kind of a divergence says without a look at the text."""
    if divergence.kind is Kind.MUTATION and divergence.saved_at is None and divergence.thread is not None:
        return [Hypothesis("thread-race", Intervention.fix("thread-schedule"), sites_of(divergence))]
    if divergence.kind in (Kind.UNINITIALIZED, Kind.MUTATION) or divergence.received_at is not None:
        return told_by_kind(divergence)
    return []


def _of_generator(divergence: Divergence, program: Program) -> list[Hypothesis]:
    """A framework's generator was in another state: it was never seeded, or with what differs."""
    library = framework_of(divergence.op)
    if library not in ("torch", "tensorflow") or ".generator" in divergence.op:
        return []
    calls = program.seedings(library)
    if not calls:
        cause = f"seed-missing-{library}"
        evidence = f"No recorded file of the program seeds {'PyTorch' if library == 'torch' else 'TensorFlow'}."
        return [Hypothesis(cause, Intervention.fix(f"{library}-seed"), sites_of(divergence), (evidence,))]
    for module, call in calls:
        origin = program.back_from([(module, one) for one in given_to(call)])
        if origin is not None:
            site = module.frame(call)
            sites = dict.fromkeys([site, _frame(origin), *sites_of(divergence)])
            held = FixedSource(site.file, site.line, "seed-value")
            evidence = f"The seed comes from {origin.code} at {Path(origin.file).name}:{origin.line}."
            return [Hypothesis("seed-varies", Intervention(sources=frozenset({held})), tuple(sites), (evidence,))]
    return []


def _of_values(divergence: Divergence, program: Program) -> list[Hypothesis]:
    """A value came from outside of the framework: from what a line upstream of its use took in."""
    is_of_path = divergence.kind in (Kind.STRUCTURE, Kind.ARGUMENT)
    ways = (
        program.statement_at(frame.file, frame.line, conditions=is_of_path) for frame in divergence.stack[:_MOST_FRAMES]
    )
    found = next((one for way in ways if (one := program.back_from(list(way))) is not None), None)
    if found is None:
        return []
    cause = "address-order" if found.has_objects else CAUSE_OF_SOURCE[found.source]
    sites = dict.fromkeys([_frame(found), *sites_of(divergence)])
    evidence = "According to the program's source, the differing value comes from there."
    intervention = without_source(FixedSource(found.file, found.line, found.source))
    return [Hypothesis(cause, intervention, tuple(sites), (evidence,))]


def _frame(found: Found) -> Frame:
    return Frame(found.file, found.line, found.function, found.code)
