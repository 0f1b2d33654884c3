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

from determinism.comparison.result import Comparison, Divergence, OutputDifference, is_repeatable
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import CAPTURE_FILE, NONE, PROCESSES_FOLDER, Table
from determinism.types import Kind, Phase

REPEATS = 100
SECONDS = 5.0
"""For the repeats; an op that does not vary takes them all, one that does is done after REPEATS."""


def needs_confirmation(divergence: Divergence | None) -> bool:
    """Whether a repetition can tell more about a divergence.

    Records without an order of their own cannot be found again by counting.
    """
    if divergence is None or divergence.stream is not None:
        return False
    return divergence.kind is Kind.OP and is_repeatable(divergence.op)


def capture_request(process: ProcessTrace, divergence: Divergence) -> dict[str, Any]:
    """What the recorder of the confirming run has to look for.

    Args:
        process: The process that holds the record.
        divergence: The divergence to be confirmed.
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
        "repeats": REPEATS,
        "seconds": SECONDS,
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
    repeated = found["outputs"]
    outputs = tuple(
        _with_repeats(output, repeated[index], found["repeats"]) if index < len(repeated) else output
        for index, output in enumerate(first.outputs)
    )
    is_op = any(output.distinct is not None and output.distinct > 1 for output in outputs)
    detail = (
        "The op itself varies: on equal inputs it gave different results within one run."
        if is_op
        else "When the op ran again, its inputs held what their producers had written, and repeating it gave one result "
        "only. It may vary rarely, or under conditions that the repetition did not meet."
    )
    comparison.first_divergence = replace(first, inputs_equal=True, outputs=outputs, detail=detail)


def _with_repeats(output: OutputDifference, found: dict[str, Any], repeats: int) -> OutputDifference:
    return replace(
        output,
        elements_different=found["elements_different"] or None,
        max_ulp=found["max_ulp"],
        max_abs=found["max_abs"],
        repeats=repeats,
        distinct=found["distinct"],
    )
