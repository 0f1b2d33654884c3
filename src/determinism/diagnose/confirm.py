"""Confirms a first divergence with one more run, in which the diverging record is looked at closely.

`op` and `mutation` cannot be told apart from two traces alone: edges say which record made an input, not whether the
input still held what that record wrote. The confirming run digests the inputs when the op is about to run, and repeats
the op on copies of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from determinism.comparison.divergence import Divergence, OutputDifference, ValueExample, is_repeatable
from determinism.comparison.result import Comparison
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import CAPTURE_FILE, NONE, PROCESSES_FOLDER, Table
from determinism.types import Kind, Phase

REPEATS = 100
SECONDS = 5.0
"""For the repeats; an op that does not vary takes them all, one that does is done after REPEATS."""
MOST_BYTES = 256 << 20
"""That are kept of the tensors of one record."""


def needs_confirmation(divergence: Divergence | None) -> bool:
    """Whether a repetition can tell more about a divergence.

    Records without an order of their own cannot be found again by counting.
    """
    if divergence is None or divergence.stream is not None:
        return False
    return divergence.kind is Kind.OP and is_repeatable(divergence.op)


def capture_request(process: ProcessTrace, divergence: Divergence, *, repeats: int, most_bytes: int) -> dict[str, Any]:
    """What the recorder of a further run has to look for.

    Args:
        process: The process that holds the record.
        divergence: The divergence to be confirmed.
        repeats: How often the op is repeated; 0 if only its values are wanted.
        most_bytes: That are kept of its tensors.
    """
    chunk, row = process.record(divergence.record)
    columns = {name: int(chunk.columns[name][row]) for name in ("step", "phase", "op", "module")}
    return {
        "process": process.key,
        "step": columns["step"],
        "phase": Phase(columns["phase"]).label,
        "op": process.names.text(Table.OP, columns["op"]),
        "module": process.names.text(Table.MODULE, columns["module"]) if columns["module"] != NONE else None,
        "occurrence": _occurrence(process, divergence.record, columns),
        "repeats": repeats,
        "seconds": SECONDS,
        "most_bytes": most_bytes,
    }


def _occurrence(process: ProcessTrace, number: int, columns: dict[str, int]) -> int:
    """How many records of the same op, module and phase come before a record in its step."""
    count, end = 0, number
    while end > 0:
        chunk, _ = process.record(end - 1)
        rows = end - chunk.first
        alike = np.ones(rows, dtype=bool)
        for name, value in columns.items():
            alike &= chunk.columns[name][:rows] == value
        count += int(alike.sum())
        if chunk.columns["step"][0] != columns["step"]:
            break
        end = chunk.first
    return count


def read_capture(trace_folder: Path, process: str) -> dict[str, Any] | None:
    """What the confirming run found; None if it never came to the record."""
    try:
        found = json.loads((trace_folder / PROCESSES_FOLDER / process / CAPTURE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def confirm(comparison: Comparison, found: dict[str, Any] | None) -> None:
    """Put what the confirming run found into the comparison."""
    first = comparison.first_divergence
    comparison.missed_in_confirming_run = found is None
    if first is None or found is None:
        return
    if found["changed_inputs"]:
        comparison.first_divergence = replace(
            first,
            kind=Kind.MUTATION,
            inputs_equal=False,
            detail="When the op ran, an input no longer held what the op that made it had written: something outside the "
            "framework changed it in between.",
        )
        return
    repeated = {output["position"]: output for output in found["outputs"]}
    outputs = tuple(
        _with_repeats(output, repeated[output.position], found["repeats"]) if output.position in repeated else output
        for output in first.outputs
    )
    comparison.first_divergence = replace(first, inputs_equal=True, outputs=outputs, detail=_detail(outputs))


def _detail(outputs: tuple[OutputDifference, ...]) -> str:
    """What the repeats say about the op."""

    def varies(name: str) -> bool:
        return any((getattr(output, name) or 0) > 1 for output in outputs)

    held = "When the op ran again, its inputs held what their producers had written"
    if all(output.repeats is None for output in outputs):
        return f"{held}; it was not repeated."
    if not varies("distinct"):
        if varies("distinct_alignments"):
            return "The op varies with the alignment of its inputs in memory: on equal inputs at the same place it gave one result only."
        return (
            f"{held}, and repeating it gave one result only. It may vary rarely, or under conditions that the repetition "
            "did not meet."
        )
    text = "The op itself varies: on equal inputs it gave different results within one run"
    if varies("distinct_one_thread"):
        if any(output.distinct_filled_memory is not None for output in outputs) and not varies(
            "distinct_filled_memory"
        ):
            return f"{text}, also with one thread, but not with memory that was filled beforehand: it reads memory that nobody wrote."
        return f"{text}, also with one thread."
    is_known = any(output.distinct_one_thread is not None for output in outputs)
    return f"{text}, but one only with one thread." if is_known else f"{text}."


def _with_repeats(output: OutputDifference, found: dict[str, Any], repeats: int) -> OutputDifference:
    return replace(
        output,
        elements_different=found.get("elements_different") or None,
        max_ulp=found.get("max_ulp"),
        max_abs=found.get("max_abs"),
        max_relative=found.get("max_relative"),
        examples=_examples(found.get("examples")),
        extent=_extent(found.get("extent")),
        repeats=repeats,
        distinct=found["distinct"],
        distinct_one_thread=found.get("distinct_one_thread"),
        distinct_filled_memory=found.get("distinct_filled_memory"),
        distinct_alignments=found.get("distinct_alignments"),
    )


def _examples(found: list[dict[str, Any]] | None) -> tuple[ValueExample, ...] | None:
    if found is None:
        return None
    return tuple(ValueExample(tuple(one["index"]), one["first"], one["second"]) for one in found)


def _extent(found: list[list[int]] | None) -> tuple[tuple[int, int], ...] | None:
    return None if found is None else tuple((low, high) for low, high in found)
