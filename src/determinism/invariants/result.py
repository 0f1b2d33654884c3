"""What came of checking a run by itself, and how it is told: as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from determinism.invariants.findings import (
    COMPARED,
    FILES,
    GRAD_MODE,
    RECOMPUTATION,
    SHARDS,
    SPLIT_BATCHES,
    InvariantFindings,
    Violation,
)
from determinism.report.answer import short_op
from determinism.report.entries import counted, listed, path_text
from determinism.trace.schema import Frame
from determinism.types import Verdict

_MOST_NAMES = 4
_LABEL = 13
_HEADLINES = {
    RECOMPUTATION: "activation checkpointing recomputes other values than the first forward gave",
    FILES: "{what} gives other tensors than were saved to it",
    GRAD_MODE: "{what} gives other results under no_grad than with grad",
}
"""Of what is found within one process."""


def verdict_of(findings: InvariantFindings) -> Verdict:
    """The verdict: without anything that could be compared, or with records missing, a run is not called consistent."""
    if findings.violations:
        return Verdict.DIFFERENT
    return Verdict.INCONCLUSIVE if findings.incomplete or not findings.compared.total() else Verdict.SAME


def invariants_document(findings: InvariantFindings) -> dict[str, Any]:
    """The findings as JSON, in the form that `docs/invariants.md` describes."""
    return {
        "format": "determinism.invariants/1",
        "verdict": verdict_of(findings).value,
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


def answer(findings: InvariantFindings) -> list[str]:
    """The lines of the report."""
    if findings.violations:
        return [line for one in findings.violations for line in _told(one)]
    compared = counted(findings.steps, "step") + (f" of {counted(findings.ranks, 'rank')}" if findings.ranks else "")
    if findings.incomplete:
        return [
            f"Inconclusive: records of {listed(findings.incomplete)} are missing",
            f"  What is there was compared, {compared}, and agrees. Record the run again with more room on the disk.",
        ]
    if not findings.compared.total():
        return [
            f"Inconclusive: nothing was found in {compared} that must agree",
            "  Compared are replicas and shards of parameters, recomputed activations, files, and calls of modules with the same inputs.",
        ]
    told = [
        f"{counted(findings.compared[name], noun)} {how}"
        for name, (noun, how) in COMPARED.items()
        if findings.compared[name]
    ]
    return [f"Consistent: {', '.join(told)}, {compared}"]


def _told(one: Violation) -> Iterator[str]:
    at = f" at step {one.step:,}"
    place = "" if one.site is None else f", {path_text(one.site.file)}:{one.site.line}"
    if one.invariant in _HEADLINES:
        of = f" on {_ranks(one.ranks)}" if one.ranks else ""
        yield f"Violated: {_HEADLINES[one.invariant].format(what=path_text(one.what))}{of}{at}{place}"
    elif one.invariant == SPLIT_BATCHES:
        yield f"Violated: {_ranks(one.ranks)} has the same batches as {_ranks(one.others)}{at}{place}"
    elif one.invariant == SHARDS:
        yield f"Violated: {one.what} as {_ranks(one.ranks)} used it is not what {_ranks(one.others)} kept{at}{place}"
    elif one.ranks == one.others:
        yield f"Violated: {one.what} differs between {_ranks(one.ranks)}{at}{place}"
    else:
        yield f"Violated: {one.what} of {_ranks(one.ranks)} differs from that of {_ranks(one.others)}{at}{place}"
    if one.site is not None:
        yield ""
        yield f"  {_line(one.site)}"
    if one.op is not None:
        yield _entry("first op", short_op(one.op))
    if one.asked_at is not None and one.asked_at != one.site:
        yield _entry("saved at" if one.invariant == FILES else "called at", _line(one.asked_at))
    if len(one.names) > 1:
        more = len(one.names) - _MOST_NAMES
        yield _entry("tensors", ", ".join(one.names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else ""))


def _line(frame: Frame) -> str:
    return f"{path_text(frame.file)}:{frame.line}  {frame.code.strip()}"


def _ranks(numbers: Sequence[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {listed([str(number) for number in numbers])}"


def _entry(label: str, text: str) -> str:
    return f"  {label.ljust(_LABEL)}{text}"
