"""The values at a divergence that is not an op's own, from two further runs that looked at the same record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from determinism.comparison.divergence import Divergence, Evidence, is_repeatable
from determinism.comparison.result import Comparison
from determinism.comparison.value_difference import difference
from determinism.errors import TraceError
from determinism.trace.schema import CAPTURED_OUTPUTS_FILE
from determinism.trace.tensor_file import StoredTensor, read_tensors
from determinism.types import Kind

_KINDS = frozenset({Kind.RNG, Kind.DATA, Kind.ARGUMENT, Kind.ORDER, Kind.UNINITIALIZED, Kind.MUTATION})
_EVENTS = frozenset(f"determinism::{name}" for name in ("batch", "tolist", "print", "pickle", "save", "return"))
"""Records beside ops that hold tensors."""


def needs_values(divergence: Divergence | None) -> bool:
    """Whether two further runs can show the values of a divergence.

    A record that only one run has may not come again, and records without an order of their own cannot be found. An op
    that varies when it is repeated has shown its values there.
    """
    if divergence is None or divergence.stream is not None:
        return False
    if divergence.kind is Kind.OP:
        has_varied = any((output.distinct or 0) > 1 for output in divergence.outputs)
        return divergence.inputs_equal is True and not has_varied and is_repeatable(divergence.op)
    return divergence.kind in _KINDS and (is_repeatable(divergence.op) or divergence.op in _EVENTS)


def add_values(comparison: Comparison, folders: Sequence[Path], reason: str | None) -> None:
    """Put into the comparison what two further runs show of the first divergence.

    Args:
        comparison: Of the runs that the verdict is on.
        folders: Where each further run left tensors of the record; fewer than two if one left none.
        reason: Why tensors are missing, as far as a run said so; goes on from "because".
    """
    first = comparison.first_divergence
    if first is None:
        return
    before = comparison.evidence
    reproducer = None if before is None else before.reproducer
    folder = str(folders[0].parent) if folders else None
    files = [one / CAPTURED_OUTPUTS_FILE for one in folders]
    if len(files) < 2 or not all(file.is_file() for file in files):
        because = reason or "a further run did not come to this record"
        comparison.evidence = Evidence("runs", folder, f"The values were not compared, because {because}.", reproducer)
        return
    try:
        tensors = [read_tensors(file) for file in files]
        comparison.first_divergence, note = _with_values(first, *tensors)
    except TraceError as error:
        note = error.message
    if reason:
        note = f"{note} Not all tensors were kept, because {reason}.".lstrip()
    comparison.evidence = Evidence("runs", folder, note, reproducer)


def _with_values(
    divergence: Divergence, first: dict[str, StoredTensor], second: dict[str, StoredTensor]
) -> tuple[Divergence, str]:
    outputs, are_alike, has_seen = [], True, False
    for output in divergence.outputs:
        name = f"output_{output.position}"
        found = difference(first[name], second[name], output.shape) if name in first and name in second else None
        if found is not None and found.elements_different:
            output, has_seen = replace(output, **found._asdict()), True
        are_alike &= found is not None
        outputs.append(output)
    note = ""
    if not has_seen and are_alike and outputs:
        note = "Two further runs had equal values here, so how far values are apart was not seen."
    elif not has_seen:
        note = "Two further runs had no values here that could be compared: they differ in number, shape or type."
    return replace(divergence, outputs=tuple(outputs)), note
