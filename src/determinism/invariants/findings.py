"""The findings of a check of one run by itself, and their forms: JSON and the entries of a report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from determinism.comparison.result import Recorded, RunSummary
from determinism.errors import first_few
from determinism.report.entries import Entry, Section, counted, line_of, listed, path_text, short_op, site_entry
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import Frame
from determinism.types import Stream, Verdict

REPLICAS = "replicas"
SPLIT_BATCHES = "split-batches"
SHARED_BATCHES = "shared-batches"
RECOMPUTATION = "recomputation"
GRAD_MODE = "grad-mode"
SHARDS = "shards"
FILES = "files"

COMPARED = {
    REPLICAS: ("parameter", "equal on their ranks"),
    SHARED_BATCHES: ("shared batch", "equal on their ranks"),
    RECOMPUTATION: ("recomputation", "equal to the first forward pass"),
    GRAD_MODE: ("call", "equal with grad and under no_grad"),
    SHARDS: ("gathered parameter", "equal to the shards"),
    FILES: ("loaded file", "equal to what was saved"),
}
"""For each invariant, the noun for what is counted and the phrase for its agreement."""

_RANK = re.compile(r"(?:.*\.)?rank-(\d+)")


@dataclass(frozen=True)
class Violation:
    """A disagreement between values that must agree within a run."""

    invariant: str
    step: int
    ranks: tuple[int, ...]
    """Ranks that differ from the others, or all ranks involved if it is unclear which; empty if there are no ranks."""
    others: tuple[int, ...]
    """Ranks that they were compared with."""
    what: str
    names: tuple[str, ...] = ()
    """Names of all tensors that differ in this step."""
    op: str | None = None
    site: Frame | None = None
    """Line of the first op that only the differing side ran, or whose result differs there."""
    asked_at: Frame | None = None
    """Line that requested the whole computation, such as the call of `checkpoint`."""
    process: str | None = None
    """Key of the process, if the violation is within one."""


@dataclass
class InvariantFindings:
    """The comparisons within a run, and the violations found."""

    violations: list[Violation] = field(default_factory=list)
    ranks: int = 0
    steps: int = 0
    """Number of steps that all ranks made."""
    compared: Counter[str] = field(default_factory=Counter)
    """Number of comparisons, by invariant."""
    incomplete: list[str] = field(default_factory=list)
    """Processes whose records are incomplete."""
    run: RunSummary | None = None
    recorded: Recorded = field(default_factory=Recorded)
    trace: str | None = None
    """Where the trace is kept, if it is."""


def ranks_of(trace: Trace) -> dict[int, ProcessTrace]:
    """Return the main streams of the processes that are ranks, by rank."""
    found = {}
    for process in main_streams(trace):
        rank = rank_of(process)
        if rank is not None:
            found[rank] = process
    return dict(sorted(found.items()))


def rank_of(process: ProcessTrace) -> int | None:
    """Return the rank of a process; None if it is not a rank."""
    matched = _RANK.fullmatch(process.key)
    return None if matched is None else int(matched[1])


def main_streams(trace: Trace) -> Iterator[ProcessTrace]:
    """Yield the streams whose records are in program order."""
    for process in trace.processes:
        if process.description.get("stream", Stream.PROCESS) == Stream.PROCESS:
            yield process


# The report.

_MOST_NAMES = 4
_HEADLINES = {
    RECOMPUTATION: "activation checkpointing recomputes different values than the first forward pass computed",
    FILES: "{what} returns different tensors than were saved to it",
    GRAD_MODE: "{what} gives different results under no_grad than with grad",
}
"""Headlines of violations within one process."""


def verdict_of(findings: InvariantFindings) -> Verdict:
    """Return the verdict; a run is inconclusive if nothing could be compared or records are missing."""
    if findings.violations:
        return Verdict.DIFFERENT
    return Verdict.INCONCLUSIVE if findings.incomplete or not findings.compared.total() else Verdict.SAME


def invariants_document(findings: InvariantFindings) -> dict[str, Any]:
    """Return the findings as JSON, in the form that `docs/invariants.md` describes."""
    return {
        "format": "determinism.invariants/1",
        "verdict": verdict_of(findings).value,
        "headline": headline(findings),
        "ranks": findings.ranks,
        "steps": findings.steps,
        "compared": dict(findings.compared),
        "incomplete": list(findings.incomplete),
        "violations": [
            {
                "invariant": one.invariant, "step": one.step, "process": one.process, "ranks": list(one.ranks),
                "others": list(one.others), "what": one.what, "names": list(one.names), "op": one.op,
                "site": _place(one.site), "asked_at": _place(one.asked_at),
            }
            for one in findings.violations
        ],
    }  # fmt: skip


def _place(frame: Frame | None) -> dict[str, Any] | None:
    return None if frame is None else frame._asdict()


def headline(findings: InvariantFindings) -> str:
    """Return the first line of the report."""
    if findings.violations:
        first, *others = findings.violations
        more = f", and {counted(len(others), 'more violation')}" if others else ""
        return f"Violated: {_violation(first)}{more}"
    compared = counted(findings.steps, "step") + (f" of {counted(findings.ranks, 'rank')}" if findings.ranks else "")
    if findings.incomplete:
        return f"Inconclusive: records of {listed(findings.incomplete)} are missing"
    if not findings.compared.total():
        return f"Inconclusive: {compared} contain nothing that must agree"
    told = [
        f"{counted(findings.compared[name], noun, 'shared batches' if name == SHARED_BATCHES else None)} {how}"
        for name, (noun, how) in COMPARED.items()
        if findings.compared[name]
    ]
    return f"Consistent: {', '.join(told)}, {compared}"


def entries(findings: InvariantFindings) -> Iterator[Entry]:
    """Yield the entries of the report below the first line."""
    for number, one in enumerate(findings.violations):
        if number:
            text = _violation(one)
            yield Entry(f"{text[:1].upper()}{text[1:]}", "also", Section.PLACE)
        yield from _place_entries(one)
    if not findings.violations and findings.incomplete:
        yield Entry(
            "The existing records agree. Record the run again with more room on the disk.",
            "records",
            Section.NOTES,
        )
    elif not findings.violations and not findings.compared.total():
        yield Entry(
            "Replicas and shards of parameters, recomputed activations, files, and calls of modules with the same inputs.",
            "compared", Section.NOTES,
        )  # fmt: skip
    if findings.trace is not None:
        yield Entry(path_text(findings.trace), "trace", Section.NOTES)


def _violation(one: Violation) -> str:
    at = f" at step {one.step:,}"
    place = "" if one.site is None else f", {path_text(one.site.file)}:{one.site.line}"
    if one.invariant in _HEADLINES:
        of = f" on {_ranks(one.ranks)}" if one.ranks else ""
        return f"{_HEADLINES[one.invariant].format(what=path_text(one.what))}{of}{at}{place}"
    if one.invariant == SPLIT_BATCHES:
        return f"{_ranks(one.ranks)} has the same batches as {_ranks(one.others)}{at}{place}"
    if one.invariant == SHARED_BATCHES:
        return f"{_ranks(one.ranks)} has different batches from {_ranks(one.others)}, although both hold parts of one model,{at}{place}"
    if one.invariant == SHARDS:
        return f"{one.what} as {_ranks(one.ranks)} used it is not what {_ranks(one.others)} kept{at}{place}"
    if one.ranks == one.others:
        return f"{one.what} differs between {_ranks(one.ranks)}{at}{place}"
    return f"{one.what} of {_ranks(one.ranks)} differs from that of {_ranks(one.others)}{at}{place}"


def _place_entries(one: Violation) -> Iterator[Entry]:
    if one.site is not None:
        yield site_entry(one.site._asdict(), Section.PLACE)
    if one.op is not None:
        yield Entry(short_op(one.op), "first op", Section.PLACE)
    if one.asked_at is not None and one.asked_at != one.site:
        text = f"{line_of(one.asked_at._asdict())}  {one.asked_at.code.strip()}"
        yield Entry(text, "saved at" if one.invariant == FILES else "called at", Section.PLACE)
    if len(one.names) > 1:
        yield Entry(first_few(one.names, _MOST_NAMES), "tensors", Section.PLACE)


def _ranks(numbers: Sequence[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {listed([str(number) for number in numbers])}"
