"""Adds to a comparison of stored traces how far the values are apart, where the traces hold values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from determinism.comparison.divergence import Divergence
from determinism.comparison.result import Comparison
from determinism.comparison.value_scan import ValueScan
from determinism.comparison.values_result import ValuesApart
from determinism.trace.reader import ProcessTrace, Trace
from determinism.types import Verdict

_ONLY_TORCH = "How far the values are apart is not known: values are kept of PyTorch's tensors only."
_AGAIN = "Record both with `determinism record --values 64`"


def add_values(comparison: Comparison, traces: Sequence[Trace]) -> None:
    """Find how far two runs are apart, and put it into their comparison.

    Args:
        comparison: Of the runs.
        traces: Of the same runs.

    Raises:
        TraceError: A trace cannot be read.
    """
    first = comparison.first_divergence
    if comparison.verdict is not Verdict.DIFFERENT or first is None:
        return
    number = comparison.environment_run
    found = [
        next((process for process in trace.processes if process.key == first.process), None)
        for trace in (traces[0], traces[number - 1])
    ]
    if first.stream is not None or found[0] is None or found[1] is None:
        return
    one, other = (_kept(process) for process in found if process is not None)
    if one is None or one != other:
        frameworks = {process.description.get("framework", "torch") for process in found if process is not None}
        note = _ONLY_TORCH if "torch" not in frameworks else _nothing_to_compare(one, other, number)
        comparison.values = ValuesApart((one, other), note)
        return
    comparison.values = values = ValueScan(found[0], found[1], first, one).result()
    if values.first is not None and (first.records_of, first.record) == (0, values.first.record):
        comparison.first_divergence = _with_values(first, values)


def _kept(process: ProcessTrace) -> int | None:
    """How many elements of a tensor were kept at most; None where none were."""
    return int(process.description.get("values") or 0) or None


def _nothing_to_compare(one: int | None, other: int | None, number: int) -> str:
    if one is None and other is None:
        return f"How far the values are apart is not known: the traces hold digests only. {_AGAIN}, and compare these."
    if one is None or other is None:
        which = 1 if one is None else number
        return f"How far the values are apart is not known: the trace of run {which} holds digests only. {_AGAIN}."
    return (
        f"How far the values are apart is not known: {one} elements of each tensor were kept in run 1, and {other} in run "
        f"{number}. {_AGAIN}."
    )


def _with_values(first: Divergence, values: ValuesApart) -> Divergence:
    assert values.first is not None
    seen = {output.position: output for output in values.first.outputs}
    outputs = tuple(seen.get(output.position, output) for output in first.outputs)
    return replace(first, outputs=outputs)
