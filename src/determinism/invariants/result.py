"""What came of checking a run by itself, and how it is told: as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from determinism.invariants.replicas import InvariantFindings, Violation
from determinism.report.answer import short_op
from determinism.report.entries import counted, listed, path_text
from determinism.types import Verdict

_MOST_NAMES = 4
_LABEL = 13


def verdict_of(findings: InvariantFindings) -> Verdict:
    """The verdict: without anything that could be compared, or with records missing, a run is not called consistent."""
    if findings.violations:
        return Verdict.DIFFERENT
    return Verdict.INCONCLUSIVE if findings.incomplete or not findings.replicas else Verdict.SAME


def invariants_document(findings: InvariantFindings) -> dict[str, Any]:
    """The findings as JSON, in the form that `docs/invariants.md` describes."""
    return {
        "format": "determinism.invariants/1",
        "verdict": verdict_of(findings).value,
        "ranks": findings.ranks,
        "steps": findings.steps,
        "replicas": findings.replicas,
        "incomplete": list(findings.incomplete),
        "violations": [
            {
                "invariant": one.invariant, "step": one.step, "ranks": list(one.ranks), "others": list(one.others),
                "what": one.what, "names": list(one.names), "op": one.op,
                "site": None if one.site is None else one.site._asdict(),
            }
            for one in findings.violations
        ],
    }  # fmt: skip


def answer(findings: InvariantFindings) -> list[str]:
    """The lines of the report."""
    if findings.violations:
        return [line for one in findings.violations for line in _told(one)]
    compared = f"{counted(findings.steps, 'step')} of {counted(findings.ranks, 'rank')}"
    if findings.incomplete:
        return [
            f"Inconclusive: records of {listed(findings.incomplete)} are missing",
            f"  What is there was compared, {compared}, and agrees. Record the run again with more room on the disk.",
        ]
    if not findings.replicas:
        return [
            f"Inconclusive: no replicas were found in {compared}",
            "  Replicas are parameters that several ranks hold, and update by equal gradients in at least two steps.",
        ]
    return [f"Consistent: {counted(findings.replicas, 'parameter')} equal on their ranks, {compared}"]


def _told(one: Violation) -> Iterator[str]:
    ranks, others = _ranks(one.ranks), _ranks(one.others)
    at = f" at step {one.step:,}"
    place = "" if one.site is None else f", {path_text(one.site.file)}:{one.site.line}"
    if one.invariant == "split-batches":
        yield f"Violated: {ranks} has the same batches as {others}{at}{place}"
    elif one.ranks == one.others:
        yield f"Violated: {one.what} differs between {ranks}{at}{place}"
    else:
        yield f"Violated: {one.what} of {ranks} differs from that of {others}{at}{place}"
    if one.site is not None:
        yield ""
        yield f"  {path_text(one.site.file)}:{one.site.line}  {one.site.code.strip()}"
    if one.op is not None:
        yield _entry("first op", short_op(one.op))
    if len(one.names) > 1:
        more = len(one.names) - _MOST_NAMES
        yield _entry("tensors", ", ".join(one.names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else ""))


def _ranks(numbers: Sequence[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {listed([str(number) for number in numbers])}"


def _entry(label: str, text: str) -> str:
    return f"  {label.ljust(_LABEL)}{text}"
