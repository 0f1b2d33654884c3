"""The parts of the JSON document that tell how far values are apart."""

from __future__ import annotations

from typing import Any

from determinism.comparison.divergence import OutputDifference
from determinism.comparison.values_result import Parting, ValuesApart
from determinism.trace.names import Frame


def values_document(values: ValuesApart) -> dict[str, Any]:
    """How far the values of two stored runs are apart."""
    return {
        "kept": values.kept,
        "note": values.note,
        "first": _parting(values.first),
        "beyond_rounding": _parting(values.beyond_rounding),
        "by_step": [step._asdict() for step in values.steps],
        "records_alone": values.alone,
    }


def _parting(parting: Parting | None) -> dict[str, Any] | None:
    if parting is None:
        return None
    return {
        "step": parting.step,
        "phase": parting.phase,
        "op": parting.op,
        "module": parting.module,
        "site": frame_document(parting.site),
        "outputs": [output_document(output) for output in parting.outputs],
        "looks_like": parting.looks_like,
    }


def output_document(output: OutputDifference) -> dict[str, Any]:
    """One output that differs."""
    return {
        "dtype": output.dtype,
        "shape": output.shape,
        "device": output.device,
        "elements": output.elements,
        "elements_different": output.elements_different,
        "max_ulp": output.max_ulp,
        "max_abs": output.max_abs,
        "max_relative": output.max_relative,
        "elements_sampled": output.elements_sampled,
        "repeats": output.repeats,
        "distinct": output.distinct,
        "distinct_one_thread": output.distinct_one_thread,
        "distinct_filled_memory": output.distinct_filled_memory,
        "distinct_alignments": output.distinct_alignments,
        "examples": None
        if output.examples is None
        else [{"index": one.index, "first": one.first, "second": one.second} for one in output.examples],
        "extent": output.extent,
    }


def frame_document(frame: Frame | None) -> dict[str, Any] | None:
    """A place of the program."""
    return None if frame is None else frame._asdict()
