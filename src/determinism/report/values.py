"""What is said of how far the values of two stored runs are apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from determinism.comparison.result import Comparison
from determinism.comparison.values_result import Likeness, Parting, ValuesApart
from determinism.report.entry import Entry, Weight
from determinism.report.evidence import FAR_APART, output_entries
from determinism.report.places import line_text
from determinism.report.wording import prose
from determinism.types import Kind

_LOOKS = {
    Likeness.ROUNDING: (
        "rounding: only the last bits differ, as another order of summation, instruction set or library makes it. This is "
        "evidence, no proof"
    ),
    Likeness.COARSER: (
        "more than rounding, though the leading digits agree: a lower precision such as TF32 or bfloat16, another formula, or a sum "
        "whose terms cancel each other"
    ),
    Likeness.OTHER: (
        "no rounding: these are other numbers. Look for other data, another seed or generator, or another algorithm"
    ),
}


def parting_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say where the values of records that both runs have first part, and what that looks like."""
    values = comparison.values
    if values is None:
        return
    if values.note:
        yield Entry(prose(values.note), "values", Weight.MAIN, lines=4)
    parting, first = values.first, comparison.first_divergence
    if parting is None:
        return
    if first is None or (first.records_of, first.record) != (0, parting.record):
        which = "of records that both runs have"
        if first is not None and first.kind is not Kind.STRUCTURE:
            which = "none of the elements that were kept of this record differ; of later ones"
        yield Entry(f"{which}, first in {_place(parting)}", "values part", Weight.MAIN)
        yield from output_entries(parting.outputs, None)
    if parting.looks_like is not None:
        yield Entry(_LOOKS[parting.looks_like], "looks like", Weight.MAIN)


def growth_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say where the values are first apart by more than rounding, and how far the loss and the parameters get."""
    values = comparison.values
    if values is None or values.first is None:
        return
    beyond = values.beyond_rounding
    if beyond is not None:
        widest = max(output.max_relative or 0.0 for output in beyond.outputs)
        size = f", by {widest:.2g} of the largest element" if widest else ""
        yield Entry(f"more than rounding apart first in {_place(beyond)}{size}", "grows", Weight.CONSEQUENCE)
    yield from _course_entries(values)
    if any(values.alone):
        run = comparison.environment_run
        text = f"{values.alone[0]:,} only in run 1, {values.alone[1]:,} only in run {run}; the others were compared"
        yield Entry(text, "records", Weight.CONSEQUENCE)


def _course_entries(values: ValuesApart) -> Iterator[Entry]:
    losses = [step for step in values.steps if step.loss_relative is not None]
    parameters = [step for step in values.steps if step.parameters_relative is not None]
    of_loss = [_Size(step.step, step.loss_relative, step.loss_ulp, "its value") for step in losses]
    of_parameters = [
        _Size(step.step, step.parameters_relative, step.parameters_ulp, f"the largest element of {step.parameter}")
        for step in parameters
    ]
    for what, sizes in (("loss", of_loss), ("parameters", of_parameters)):
        if sizes:
            yield Entry(_course(sizes), what, Weight.CONSEQUENCE)


class _Size(NamedTuple):
    """How far something is apart at one step."""

    step: int
    relative: float | None
    ulp: int | None
    whole: str

    def __str__(self) -> str:
        units = "" if self.ulp is None or self.ulp >= FAR_APART else f"{self.ulp:,} ulp, "
        return f"{units}{self.relative:.2g} of {self.whole}"


def _course(sizes: list[_Size]) -> str:
    """Where something first differs, and where most."""
    apart = [size for size in sizes if size.relative]
    if not apart:
        return "equal at all steps at which values are known"
    first, most = apart[0], max(apart, key=lambda size: size.relative or 0.0)
    text = f"apart from step {first.step} on, by {first}"
    return text if most.ulp == first.ulp else f"{text}; most at step {most.step}, by {most}"


def _place(parting: Parting) -> str:
    where = f"{parting.op} at step {parting.step}, {parting.phase}"
    return where if parting.site is None else f"{where}, {line_text(parting.site)}"
