"""What is said of the values that differ, and of what further runs kept of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from determinism.comparison.divergence import Evidence, OutputDifference
from determinism.comparison.result import Comparison
from determinism.report.entry import Entry, Weight
from determinism.report.places import path_text
from determinism.report.wording import counted, prose

MOST_OUTPUTS = 3
FAR_APART = 1 << 24
"""So many numbers between say nothing any more: the values have other signs, or nothing to do with each other."""
_EXECUTIONS = {True: ("one run", "another"), False: ("one repeat", "another")}
"""By whether these are runs."""


def output_entries(outputs: tuple[OutputDifference, ...], evidence: Evidence | None) -> Iterator[Entry]:
    """Say of each output how far two executions are apart, where, and how often it came out how.

    Args:
        outputs: Those that differ.
        evidence: Tells which executions these are; None if there were none.
    """
    for number, output in enumerate(outputs[:MOST_OUTPUTS]):
        weight = Weight.ITEM if number else Weight.MAIN
        label = "output" if len(outputs) == 1 else f"output {number}"
        shape = f"[{', '.join(map(str, output.shape))}]"
        is_of_runs = evidence is not None and evidence.source == "runs"
        text = f"{output.dtype} {shape} on {output.device}: {_size(output, is_of_runs)}"
        if evidence is None and output.max_relative:
            text += f", {output.max_relative:.2g} of the largest element"
        yield Entry(text, label, weight)
        if output.examples:
            executions = ("run 1", "run 2") if evidence is None else _EXECUTIONS[is_of_runs]
            yield Entry(_example(output, executions), weight=Weight.EXTRA if number else Weight.ITEM, lines=2)
        if output.repeats is not None and output.distinct is not None:
            yield Entry(_counts(output), weight=weight)
    if len(outputs) > MOST_OUTPUTS:
        yield Entry(f"and {counted(len(outputs) - MOST_OUTPUTS, 'more output')}", weight=Weight.ITEM)


def evidence_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say where the tensors and the script are, and what could not be kept or seen."""
    evidence = comparison.evidence
    if evidence is None:
        return
    if evidence.reproducer is not None:
        text = f"python {path_text(evidence.reproducer)} shows it by itself: it needs the framework only"
        yield Entry(text, "reproducer", Weight.MAIN)
    if evidence.folder is not None:
        yield Entry(f"tensors of the record in {path_text(evidence.folder)}", "evidence", Weight.NOTE)
    if evidence.note:
        yield Entry(prose(evidence.note), "" if evidence.folder is not None else "evidence", Weight.NOTE)


def _size(output: OutputDifference, is_of_runs: bool) -> str:
    if output.elements_different is None:
        text = counted(output.elements, "element")
    else:
        verb = "differs" if output.elements_different == 1 else "differ"
        if output.elements_sampled is None:
            text = f"{output.elements_different:,} of {counted(output.elements, 'element')} {verb}"
        else:
            text = f"{output.elements_different:,} of {output.elements_sampled:,} sampled elements {verb}"
        if is_of_runs:
            text += " between two further runs"
        if output.extent and any(
            (low, high + 1) != (0, size) for (low, high), size in zip(output.extent, output.shape, strict=False)
        ):
            ranges = (str(low) if low == high else f"{low} to {high}" for low, high in output.extent)
            text += f", within [{', '.join(ranges)}]"
    sizes = []
    # Of values that have nothing to do with each other the distance in value says all.
    if output.max_ulp is not None and (output.max_ulp < FAR_APART or output.max_abs is None):
        sizes.append(f"{output.max_ulp:,} ulp")
    if output.max_abs is not None and not math.isnan(output.max_abs):
        sizes.append(f"{output.max_abs:.3g} in value")
    return f"{text}, by at most {' and '.join(sizes)}" if sizes else text


def _example(output: OutputDifference, executions: tuple[str, str]) -> str:
    assert output.examples
    one = output.examples[0]
    place = f"[{', '.join(map(str, one.index))}]"
    return f"first at {place}: {one.first} in {executions[0]}, {one.second} in {executions[1]}"


def _counts(output: OutputDifference) -> str:
    results = counted(output.distinct or 0, "distinct result")
    others = [
        (output.distinct_one_thread, "with one thread"),
        (output.distinct_filled_memory, "with one thread and memory that was filled"),
        (output.distinct_alignments, "at varied alignments"),
    ]
    further = "".join(f"; {number:,} {condition}" for number, condition in others if number is not None)
    return f"the op gave {results} in {counted(output.repeats or 0, 'repeat')} on equal inputs{further}"
