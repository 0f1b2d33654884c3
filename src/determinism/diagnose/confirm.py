"""Confirms a first divergence with one more run, in which the diverging record is inspected.

Two traces alone cannot distinguish `op` from `mutation`: edges say which record made an input, not whether the input still
held what that record wrote. The confirming run digests the inputs just before the op runs, and repeats the op on copies of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from determinism.comparison.divergence import (
    Divergence,
    Evidence,
    Inside,
    OutputDifference,
    ValueExample,
    is_repeatable,
    what_op_does,
)
from determinism.comparison.records import entry_of
from determinism.comparison.result import Comparison
from determinism.comparison.tensors import difference
from determinism.errors import TraceError, first_few
from determinism.knowledge.entries import Device, OpVerdict, op_at
from determinism.knowledge.query import entries_for
from determinism.op_semantics import OpSemantics, base_name, framework_of
from determinism.trace.files import StoredTensor, read_document, read_tensors
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import (
    CAPTURE_FILE,
    CAPTURED_INPUTS_FILE,
    CAPTURED_OUTPUTS_FILE,
    NONE,
    PROCESSES_FOLDER,
    Frame,
    Table,
)
from determinism.types import Kind, Phase

EQUAL_HERE = "Two further runs had equal values here, so the size of the difference is not known."
REPEATS = 100
SECONDS = 5.0
"""Time for the repeats; an op that does not vary uses all of it, one that varies stops after REPEATS."""
MOST_BYTES = 256 << 20
"""The most bytes kept of the tensors of one record."""


def executions(divergence: Divergence, traces: Sequence[Trace]) -> int:
    """Return how often a divergence's op ran at its line, in its process of the run with the record; 1 if unknown."""
    if divergence.kind is not Kind.OP or divergence.records_of >= len(traces):
        return 1
    keys = (divergence.stream or divergence.process,)
    process = next((one for one in traces[divergence.records_of].processes if one.key in keys), None)
    if process is None:
        return 1
    chunk, row = process.record(divergence.record)
    alike = {name: chunk.columns[name][row] for name in ("op", "stack", "forward_stack")}
    counts = (
        int(np.logical_and.reduce([one.columns[name] == value for name, value in alike.items()]).sum())
        for one in process.chunks()
    )
    return max(sum(counts), 1)


def needs_confirmation(divergence: Divergence | None) -> bool:
    """Whether a repetition can show more about a divergence.

    Among records without an order of their own, those of threads can be found again by their line and inputs. A process cannot repeat a
    collective by itself.
    """
    if divergence is None or (divergence.stream is not None and divergence.thread is None):
        return False
    is_collective = OpSemantics.COLLECTIVE in what_op_does(divergence.op)
    return divergence.kind is Kind.OP and is_repeatable(divergence.op) and not is_collective


def capture_request(
    process: ProcessTrace, divergence: Divergence, *, repeats: int, most_bytes: int, ends: bool = True
) -> dict[str, Any]:
    """Return what the recorder of a further run should look for.

    Args:
        process: The process that holds the record.
        divergence: The divergence to be confirmed.
        repeats: How often to repeat the op; 0 if only its values are wanted.
        most_bytes: The most bytes to keep of its tensors.
        ends: Whether the program ends then.
    """
    chunk, row = process.record(divergence.record)
    columns = {name: int(chunk.columns[name][row]) for name in ("step", "phase", "op", "module")}
    alike = None if divergence.stream is None else _likeness(process, divergence)
    return {
        "process": process.key,
        "step": columns["step"],
        "phase": Phase(columns["phase"]).label,
        "op": process.names.text(Table.OP, columns["op"]),
        "module": process.names.text(Table.MODULE, columns["module"]) if columns["module"] != NONE else None,
        "occurrence": _occurrence(process, divergence.record, columns) if alike is None else 0,
        "alike": alike,
        "repeats": repeats,
        "seconds": SECONDS,
        "most_bytes": most_bytes,
        "ends": ends,
    }


def _likeness(process: ProcessTrace, divergence: Divergence) -> dict[str, Any]:
    """Return how to recognize a thread's record, whichever thread makes it, and in whatever step of the other threads."""
    one = entry_of(process, *process.record(divergence.record))
    shapes = {(made.layout.dtype, made.layout.shape) for made in one.inputs if made.layout is not None}
    site = divergence.site
    return {
        "site": None if site is None else [site.file, site.line],
        "inputs": [[dtype, list(shape)] for dtype, shape in sorted(shapes)],
    }


def _occurrence(process: ProcessTrace, number: int, columns: dict[str, int]) -> int:
    """Return how many records of the same op, module and phase precede a record in its step."""
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
    """Return what the confirming run found; None if it never reached the record."""
    try:
        found = read_document(trace_folder / PROCESSES_FOLDER / process / CAPTURE_FILE)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def confirmed(comparison: Comparison, found: dict[str, Any] | None) -> Comparison:
    """Add what the confirming run found to the comparison."""
    diagnosis = replace(comparison.diagnosis, missed_in_confirming_run=found is None)
    first = comparison.first_divergence
    if first is not None and found is not None:
        first = _looked_at(first, found)
    return replace(comparison, diagnosis=diagnosis, first_divergence=first)


def _looked_at(first: Divergence, found: dict[str, Any]) -> Divergence:
    """Return the divergence as the confirming run saw it."""
    if found["changed_inputs"]:
        return replace(
            first,
            kind=Kind.MUTATION,
            inputs_equal=False,
            detail="When the op ran, an input no longer held what its producer had written: something outside the "
            "framework had changed it in between.",
        )
    repeated = {output["position"]: output for output in found["outputs"]}
    outputs = tuple(
        _with_repeats(output, repeated[output.position], found["repeats"]) if output.position in repeated else output
        for output in first.outputs
    )
    inside = _inside(found.get("inside"))
    if found.get("fused"):
        more = f" {_fused(found['fused'], inside)}"
    elif failed := found.get("inside_failed"):
        more = f" The search could not look inside it ({failed})."
    else:
        more = "" if inside is None else f" {_how_found(found['inside'])}"
    if inside is None:
        more += _known_to_vary(found.get("made_of") or (), first)
    detail = f"{_detail(outputs)}{more}"
    return replace(first, inputs_equal=True, outputs=outputs, detail=detail, inside=inside)


def _compiled_anew(op: str) -> str:
    """Say how the differing part of a function compiled by XLA was found, and what that leaves open."""
    part = "op" if framework_of(op) == "tensorflow" else "equation"
    return (
        f"It was compiled once more so that it returns its intermediate values, and varied first at one {part}. "
        "Compiled like this, XLA fuses less, so the kernels may differ from those of the program."
    )


def _how_found(inside: dict[str, Any]) -> str:
    """Say how the part within a compiled function was found: in the program's own kernels, or by recompiling it."""
    kernel = inside.get("kernel")
    if kernel is None:
        why_not = inside.get("no_kernel")
        if why_not is None:
            return f"{_compiled_anew(inside['op'])} None of the program's own kernels varied when it was run again."
        return f"{_compiled_anew(inside['op'])} The program's own kernels could not be examined one by one: {why_not}."
    text = (
        f"The output of each of the program's own kernels was examined: {kernel['instruction']} ({kernel['opcode']}) "
        "of the optimised program is the first that varies."
    )
    lines = _by_line(kernel["made_from"])
    return f"{text} XLA made it from {', '.join(lines)}." if len(lines) > 1 else text


_MOST_KNOWN = 4


def _known_to_vary(ops: Sequence[dict[str, Any]], first: Divergence) -> str:
    """Name the ops of a compiled function that are known to vary on its device, each with its line; begins with a space."""
    device = "cpu" if all(output.device.lower().startswith("cpu") for output in first.outputs) else "gpu"
    varying = [one for one in ops if _varies_on(device, one["op"])]
    if not varying:
        return ""
    named = [
        f"{base_name(one['op'])} ({PurePath(one['file']).name}:{one['line']})" if one["file"] else base_name(one["op"])
        for one in varying
    ]
    return f" Of its ops, these are known to vary on a {device.upper()}: {first_few(named, _MOST_KNOWN)}."


def _varies_on(device: str, op: str) -> bool:
    """Whether XLA's version of an op is known to be nondeterministic by default."""
    framework = framework_of(op)
    # XLA's version of a TensorFlow op is unrelated to TensorFlow's own kernel.
    name = f"tf2xla.{base_name(op)}" if framework == "tensorflow" else f"jax.lax.{base_name(op).replace('-', '_')}"
    statuses = [status for entry in entries_for(name, framework) for status in op_at(entry).statuses]
    return any(
        status.default is OpVerdict.NONDETERMINISTIC and status.device in (device, Device.ANY) for status in statuses
    )


def _fused(ops: Sequence[dict[str, Any]], inside: Inside | None) -> str:
    """Say what a kernel was made from, line by line, and which part of it can vary."""
    lines = _by_line(ops)
    text = f"Inductor compiled this kernel from {', '.join(lines)}."
    if inside is None or len(lines) == 1:
        return text
    adds = "add" if " and " in inside.op else "adds"
    return f"{text} Of these, {base_name(inside.op)} {adds} to the same elements from several threads, in any order."


def _by_line(ops: Sequence[dict[str, Any]]) -> list[str]:
    """Return ops with their line, grouped by line."""
    by_line: dict[tuple[str, int], dict[str, None]] = {}
    for one in ops:
        by_line.setdefault((one["file"], one["line"]), {})[base_name(one["op"])] = None
    return [f"{' and '.join(names)} ({Path(file).name}:{line})" for (file, line), names in by_line.items()]


def _inside(found: dict[str, Any] | None) -> Inside | None:
    if found is None:
        return None
    site = Frame(found["file"], found["line"], found["function"], found["code"]) if found["file"] else None
    return Inside(found["op"], site, tuple(found["inside"]))


def _detail(outputs: tuple[OutputDifference, ...]) -> str:
    """Say what the repeats show about the op."""

    def varies(name: str) -> bool:
        return any((getattr(output, name) or 0) > 1 for output in outputs)

    held = "When the op ran again, its inputs held what their producers had written"
    if all(output.repeats is None for output in outputs):
        return f"{held}; it was not repeated."
    if not varies("distinct"):
        if varies("distinct_alignments"):
            return "The op varies with the alignment of its inputs in memory: on equal inputs at the same address it gave only one result."
        return (
            f"{held}, and repeating it gave only one result. It may vary rarely, or under conditions that the "
            "repetition did not meet."
        )
    text = "The op itself varies: on equal inputs it gave different results within one run"
    if varies("distinct_one_thread"):
        if any(output.distinct_filled_memory is not None for output in outputs) and not varies(
            "distinct_filled_memory"
        ):
            return (
                f"{text}, also with one thread, but not with memory that was filled beforehand: it reads "
                "uninitialized memory."
            )
        return f"{text}, also with one thread."
    is_known = any(output.distinct_one_thread is not None for output in outputs)
    return f"{text}, but only one with one thread." if is_known else f"{text}."


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


# The values at a divergence that an op did not cause, from two further runs that inspected the same record.

_KINDS = frozenset({Kind.RNG, Kind.DATA, Kind.ARGUMENT, Kind.ORDER, Kind.UNINITIALIZED, Kind.MUTATION})
_EVENTS = frozenset(f"determinism::{name}" for name in ("batch", "tolist", "print", "pickle", "save", "return"))
"""Records other than ops that hold tensors."""


def needs_values(divergence: Divergence | None) -> bool:
    """Whether two further runs can show the values of a divergence.

    A record that only one run has may not recur, and records without an order of their own cannot be found. An op that varies
    when repeated has already shown its values.
    """
    if divergence is None or divergence.stream is not None:
        return False
    if divergence.kind is Kind.OP:
        has_varied = any((output.distinct or 0) > 1 for output in divergence.outputs)
        return divergence.inputs_equal is True and not has_varied and is_repeatable(divergence.op)
    if OpSemantics.LEAVES_UNWRITTEN in what_op_does(divergence.op):
        # Uninitialized memory has no values of its own.
        return False
    return divergence.kind in _KINDS and (is_repeatable(divergence.op) or divergence.op in _EVENTS)


def with_further_values(
    comparison: Comparison, folders: Sequence[Path], reason: str | None, paths: Mapping[str, str | None]
) -> Comparison:
    """Add what two further runs show of the first divergence to the comparison.

    Args:
        comparison: The comparison that the verdict is based on.
        folders: Where each further run left tensors of the record; fewer than two if one left none.
        reason: Why tensors are missing, if a run gave a reason; continues a sentence after "because".
        paths: Names of the inputs that were kept, in order, with their positions among the op's arguments.
    """
    first = comparison.first_divergence
    if first is None:
        return comparison
    first = _with_input_values(first, folders, paths)
    before = comparison.evidence
    reproducer = None if before is None else before.reproducer
    folder = str(folders[0].parent) if folders else None
    files = [one / CAPTURED_OUTPUTS_FILE for one in folders]
    if len(files) < 2 or not all(file.is_file() for file in files):
        note = f"The values were not compared, because {reason or 'a further run did not reach this record'}."
    else:
        try:
            tensors = [read_tensors(file) for file in files]
            first, note = _with_values(first, *tensors)
        except TraceError as error:
            note = error.message
        if reason:
            note = f"{note} Not all tensors were kept, because {reason}.".lstrip()
    evidence = Evidence("runs", folder, note, reproducer)
    return replace(comparison, first_divergence=first, diagnosis=replace(comparison.diagnosis, evidence=evidence))


def _with_input_values(divergence: Divergence, folders: Sequence[Path], paths: Mapping[str, str | None]) -> Divergence:
    """Add the differing values of a divergence's inputs, where further runs kept them."""
    files = [one / CAPTURED_INPUTS_FILE for one in folders]
    if not divergence.inputs or len(files) < 2 or not all(file.is_file() for file in files):
        return divergence
    try:
        first, second = (read_tensors(file) for file in files)
    except TraceError:
        return divergence
    # The record counts a tensor each time the op reads it; a file contains it once.
    left = [name for name in paths if name in first and first[name] != second.get(name)]
    inputs = []
    for one in divergence.inputs:
        alike = [name for name in left if first[name].shape[: len(one.shape)] == one.shape]
        name = next((name for name in (f"input_{one.position}", *alike) if name in alike), None)
        if name is not None:
            left.remove(name)
            found = difference(first[name], second[name], one.shape) if name in second else None
            one = replace(one, path=one.path or paths[name], **(found._asdict() if found is not None else {}))
        inputs.append(one)
    return replace(divergence, inputs=tuple(inputs))


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
        note = EQUAL_HERE
    elif not has_seen:
        note = "Two further runs had no values here that could be compared: they differ in number, shape or type."
    return replace(divergence, outputs=tuple(outputs)), note
