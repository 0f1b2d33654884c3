"""The story of the first divergence: what differs, where, why, and with what consequences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from determinism.comparison.divergence import (
    Divergence,
    Evidence,
    InputDifference,
    Likeness,
    OutputDifference,
    is_repeatable,
    what_op_does,
)
from determinism.comparison.result import Comparison, Missing, Parting, ValuesApart
from determinism.diagnose.checkpoints import PARTS
from determinism.environment import stack_differences
from determinism.errors import first_few
from determinism.op_semantics import OpSemantics
from determinism.report.entries import (
    FAR_APART,
    Document,
    Entry,
    Section,
    answer,
    counted,
    entries_under,
    frame_text,
    headline,
    kind_sentence,
    line_text,
    one_paragraph,
    path_text,
)
from determinism.report.notes import detail_entries, leftover_entries, limiting_entries, stack_entries
from determinism.report.sections import batch_entries, batch_headline, narrowing_entries
from determinism.trace.schema import Frame
from determinism.types import Kind, Level, Verdict

# Describes causes beyond their line and their fix: the evidence, and what was tried.

MOST_CAUSES = 5
MOST_SITES = 3


def cause_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say why causes make the runs differ, where else they show, and which experiments were made."""
    for cause in comparison.causes[:MOST_CAUSES]:
        yield Entry(f"{cause.title} ({cause.identifier}, {cause.status})", "cause")
        for site in cause.sites[:MOST_SITES]:
            yield from _frame_entries(site, "")
        for sentence in cause.evidence:
            yield Entry(one_paragraph(sentence))
    more = len(comparison.causes) - MOST_CAUSES
    if more > 0:
        yield Entry(f"and {counted(more, 'more cause')}")
    made = (
        f"{one.factor} {one.action}: {one_paragraph(one.outcome)} ({counted(one.runs, 'run')})"
        for one in comparison.experiments
    )
    yield from entries_under("experiments", made)


# Describes the values that differ, and what further runs kept of them.

MOST_OUTPUTS = 3
_EXECUTIONS = {True: ("one run", "another"), False: ("one repeat", "another")}
"""Keyed by whether these are runs."""


def output_entries(outputs: tuple[OutputDifference, ...], evidence: Evidence | None) -> Iterator[Entry]:
    """Say for each output how far apart two executions are, where, and how many distinct results there were.

    Args:
        outputs: The outputs that differ.
        evidence: Says which executions these are; None if there were none.
    """
    for number, output in enumerate(outputs[:MOST_OUTPUTS]):
        label = "output" if len(outputs) == 1 else f"output {number}"
        shape = f"[{', '.join(map(str, output.shape))}]"
        is_of_runs = evidence is not None and evidence.source == "runs"
        text = f"{output.dtype} {shape} on {output.device}: {_size(output, is_of_runs)}"
        if evidence is None and output.max_relative:
            text += f", {output.max_relative:.2g} of the largest element"
        yield Entry(text, label)
        if output.examples:
            executions = ("run 1", "run 2") if evidence is None else _EXECUTIONS[is_of_runs]
            yield Entry(_example(output, executions))
        if output.repeats is not None and output.distinct is not None:
            yield Entry(_counts(output))
    if len(outputs) > MOST_OUTPUTS:
        yield Entry(f"and {counted(len(outputs) - MOST_OUTPUTS, 'more output')}")


def evidence_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say where the tensors and the script are, and what could not be kept or observed."""
    evidence = comparison.evidence
    if evidence is None:
        return
    if evidence.reproducer is not None:
        text = f"python {path_text(evidence.reproducer)} reproduces it; it needs only the framework"
        yield Entry(text, "reproducer")
    if evidence.folder is not None:
        yield Entry(f"tensors of the record in {path_text(evidence.folder)}", "evidence")
    if evidence.note:
        yield Entry(one_paragraph(evidence.note), "" if evidence.folder is not None else "evidence")


def _size(output: OutputDifference | InputDifference, is_of_runs: bool) -> str:
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
    # For unrelated values, the difference in value says everything.
    if output.max_ulp is not None and (output.max_ulp < FAR_APART or output.max_abs is None):
        sizes.append(f"{output.max_ulp:,} ulp")
    if output.max_abs is not None and not math.isnan(output.max_abs):
        sizes.append(f"{output.max_abs:.3g} in value")
    return f"{text}, by at most {' and '.join(sizes)}" if sizes else text


def _example(output: OutputDifference | InputDifference, executions: tuple[str, str]) -> str:
    assert output.examples
    example = output.examples[0]
    place = f"[{', '.join(map(str, example.index))}]"
    return f"first at {place}: {example.first} in {executions[0]}, {example.second} in {executions[1]}"


def _counts(output: OutputDifference) -> str:
    results = counted(output.distinct or 0, "distinct result")
    others = [
        (output.distinct_one_thread, "with one thread"),
        (output.distinct_filled_memory, "with one thread and memory that was filled"),
        (output.distinct_alignments, "at varied alignments"),
    ]
    further = "".join(f"; {number:,} {condition}" for number, condition in others if number is not None)
    return f"the op gave {results} in {counted(output.repeats or 0, 'repeat')} on equal inputs{further}"


# Says what a checkpoint lacks, and the code that fixes it.

_NEVER_SAVED = frozenset({"training-mode", "optimizer-order"})
"""State that no checkpoint holds, so that the program itself has to restore it."""

_VERIFIED = "Verified: further runs restored it from outside, and the resumed run was equal to the full one."

_VERIFIED_BUT_READ = (
    "Verified: further runs restored it from outside, and everything that the resumed run trained or saved was equal to the full one. Only "
    "numbers that the program reads still differed, first a {}: a running loss for a log, for instance, which the checkpoint need not hold."
)

_IN_VAIN = (
    "Not verified: further runs restored it from outside, but the resumed run was not equal. Something else is "
    "missing, too, and this may only be a consequence; or the program draws between that point and its first step."
)


def missing_entries(comparison: Comparison) -> Iterator[Entry]:
    """Name each missing part, and the line that saves."""
    if comparison.missing is None or comparison.verdict is Verdict.SAME:
        return
    yield from _whole_fix_entries(comparison)
    if comparison.verdict is not Verdict.DIFFERENT:
        return
    if not comparison.missing:
        text = "What the checkpoint lacks could not be determined: it is none of the things that checkpoints are known to lack."
        yield Entry(text, "not saved")
        return
    for number, missing in enumerate(comparison.missing):
        label = _label(missing)
        is_first = not number or label != _label(comparison.missing[number - 1])
        yield Entry(PARTS[missing.identifier].title, label if is_first else "")
        yield Entry(missing.fix)
        if any(fix.identifier == missing.identifier and fix.verified for fix in comparison.fixes):
            yield Entry(_verified(comparison))
        if missing.is_tried_in_vain:
            yield Entry(_IN_VAIN)
    site = comparison.missing[0].site
    if site is None:
        seen = (
            "torch.save, safetensors.torch or determinism.state"
            if "torch" in comparison.recorded.frameworks
            else "determinism.state"
        )
        yield Entry(f"The line that saves is not known: nothing was saved through {seen}.", "saved at")
        return
    yield Entry(frame_text(site), "saved at")
    if site.code.strip():
        yield Entry(site.code.strip(), is_code=True)


def _verified(comparison: Comparison) -> str:
    read = None if comparison.resume is None else comparison.resume.still_read
    if read is None:
        return _VERIFIED
    return _VERIFIED_BUT_READ.format(f"{read.what}{f' at {line_text(read.site)}' if read.site is not None else ''}")


def _label(missing: Missing) -> str:
    if missing.is_put_back:
        return "restored too early"
    return "not restored" if missing.is_saved or missing.identifier in _NEVER_SAVED else "not saved"


def _whole_fix_entries(comparison: Comparison) -> Iterator[Entry]:
    """Yield verified fixes that are not about the checkpoint."""
    named = {missing.identifier for missing in comparison.missing or []}
    for fix in comparison.fixes:
        if fix.identifier not in named and fix.verified:
            written = " ".join(f"{name}={value}" for name, value in fix.environment or ()) or fix.code or ""
            yield Entry(f"{written}: {fix.title}", "fix")
            yield Entry("Verified: with it the resumed run was equal to the full one.")


MOST_FRAMES = 4
MOST_INFECTED = 6
MOST_RECEIVERS = 3


def origin_entries(comparison: Comparison, first: Divergence) -> Iterator[Entry]:
    """Say what differs first, in which op, and at which line of the program."""
    yield Entry(kind_sentence(first, comparison.level), "kind")
    yield Entry(first.op, "op")
    if first.module is not None:
        yield Entry(first.module or "the outermost module", "module")
    yield Entry(_where(comparison, first), "where")
    yield from _site_entries(first)
    yield from _inside_entries(first)
    if first.detail:
        yield Entry(one_paragraph(first.detail), "detail")
    yield from _origin_of_input(comparison, first)
    yield from _input_entries(first)
    # For values that came in, the tensors themselves say that they differ.
    inputs = None if first.inputs or first.kind is Kind.DATA else _inputs_sentence(first, comparison)
    if inputs:
        yield Entry(inputs, "inputs")
    yield from output_entries(first.outputs, comparison.evidence)
    yield from evidence_entries(comparison)


def consequence_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say which streams received the difference, where it became visible, what it reached, and whether it vanished."""
    yield from _receiver_entries(comparison)
    first = comparison.first_visible
    if first is not None:
        place = f" at {line_text(first.site)}" if first.site else ""
        yield Entry(f"first at step {first.step}: {first.what}{place}", "visible")
    infected = [value for value in comparison.infected if value != first]
    if infected:
        reached = [f"{value.what} (step {value.step})" for value in infected]
        yield Entry(first_few(reached, MOST_INFECTED), "reached")
    if comparison.absorbed:
        text = "The difference was read and then disappeared: it reached nothing that was kept."
        if comparison.recorded.blind_spots:
            text += " What was not recorded (see the blind spots) may have kept it."
        yield Entry(text, "absorbed")


def _receiver_entries(comparison: Comparison) -> Iterator[Entry]:
    receivers = [divergence for divergence in comparison.divergences if divergence.received_from is not None]
    for number, reception in enumerate(receivers[:MOST_RECEIVERS]):
        receiver = f"thread {reception.thread}" if reception.thread is not None else f"process {reception.process}"
        sender = (
            "another thread" if reception.received_from == reception.process else f"process {reception.received_from}"
        )
        place = f" at {line_text(reception.site)}" if reception.site else ""
        text = f"{receiver} received it from {sender}, in {reception.op}{place} (step {reception.step})"
        yield Entry(text, "" if number else "received")
    more = len(receivers) - MOST_RECEIVERS
    if more > 0:
        yield Entry(f"and so did {more:,} more")


def _where(comparison: Comparison, first: Divergence) -> str:
    parts = [f"step {first.step}", first.phase]
    if comparison.recorded.processes > 1:
        parts.append(f"process {first.process}")
    if first.thread is not None:
        parts.append(f"thread {first.thread}")
    return ", ".join(parts)


def _site_entries(first: Divergence) -> Iterator[Entry]:
    if first.site is None and first.forward_site is None:
        yield Entry("No line of the program's own code is known for this record.", "site")
    if first.site is not None:
        yield from _frame_entries(first.site, "site")
    if first.forward_site is not None:
        yield from _frame_entries(first.forward_site, "forward site")
    callers = (frame_text(frame) for frame in first.stack if frame not in (first.site, first.forward_site))
    yield from entries_under("called by", callers, MOST_FRAMES)


def _inside_entries(first: Divergence) -> Iterator[Entry]:
    """Name what varies within a compiled function."""
    if first.inside is not None:
        functions = "".join(f", in {name}" for name in reversed(first.inside.functions))
        yield Entry(f"{first.inside.op}{functions}", "inside")
        if first.inside.site is not None:
            yield from _frame_entries(first.inside.site, "")


def _frame_entries(frame: Frame, label: str) -> Iterator[Entry]:
    yield Entry(frame_text(frame), label)
    code = frame.code.strip()
    if code:
        yield Entry(code, is_code=True)


def _origin_of_input(comparison: Comparison, first: Divergence) -> Iterator[Entry]:
    """Name the line that an input came from, where the runs themselves show it and no cause does."""
    named = {site for cause in comparison.causes for site in cause.sites}
    for frame, label in ((first.allocated_at, "allocated at"), (first.received_at, "received at")):
        if frame is not None and frame not in named:
            yield from _frame_entries(frame, label)


def _input_entries(first: Divergence) -> Iterator[Entry]:
    """Name the inputs that differ, with some of their values where further runs kept them."""
    for given_input in first.inputs[:MOST_OUTPUTS]:
        shape = f"[{', '.join(map(str, given_input.shape))}]"
        path = f"{given_input.path}: " if given_input.path else ""
        other = f" in one run, {given_input.other} in the other" if given_input.other else ""
        size = "" if other else f": {_size(given_input, is_of_runs=True)}"
        yield Entry(
            f"{path}{given_input.dtype} {shape} on {given_input.device}{other}{size}", f"input {given_input.position}"
        )
        if given_input.examples:
            yield Entry(_example(given_input, _EXECUTIONS[True]))
    if len(first.inputs) > MOST_OUTPUTS:
        yield Entry(f"and {counted(len(first.inputs) - MOST_OUTPUTS, 'more input')}")


def _inputs_sentence(first: Divergence, comparison: Comparison) -> str | None:
    if first.inputs_equal is not None:
        if not first.inputs_equal:
            return "the inputs differ"
        return "equal in both runs" if len(comparison.runs) == 2 else "equal in all runs"
    if first.kind is not Kind.OP or comparison.level != Level.OP:
        # The cause is known without inputs, or there is nothing to compare them with; other levels do not follow inputs.
        return None
    if first.stream is not None:
        return "It is not known whether the inputs were equal: a further run distributes the work among threads differently."
    if not is_repeatable(first.op):
        return "It is not known whether the inputs were equal: what ran here is not a single op that could be repeated."
    if OpSemantics.COLLECTIVE in what_op_does(first.op):
        return (
            "They come from records that are equal in both runs, in every process; a collective is not repeated "
            "to check their contents."
        )
    if comparison.diagnosis.missed_in_confirming_run:
        return "It is not known whether the inputs were equal: the confirming run did not reach this record."
    if stack_differences(comparison.environment):
        return "They come from records that are equal in both runs; their contents were not checked again."
    return "It was not checked whether the inputs were equal; `determinism check --explain` finds out."


# Describes how far apart the values of two stored runs are.

_LOOKS = {
    Likeness.ROUNDING: (
        "rounding: only the last bits differ, as a different order of summation, instruction set or library causes. This is "
        "evidence, not proof"
    ),
    Likeness.COARSER: (
        "more than rounding, though the leading digits agree: a lower precision such as TF32 or bfloat16, another formula, or a sum "
        "whose terms cancel each other"
    ),
    Likeness.OTHER: (
        "not rounding error: the values differ. Look for different data, a different seed or generator, or a different algorithm"
    ),
}


def parting_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say where the values of records that both runs have first part, and what that looks like."""
    values = comparison.values
    if values is None:
        return
    parting, first = values.first, comparison.first_divergence
    if parting is None:
        return
    if first is None or (first.records_of, first.record) != (0, parting.record):
        which = "in the records that both runs have"
        if first is not None and first.kind is not Kind.STRUCTURE:
            which = "none of the kept elements of this record differ; among later records"
        yield Entry(f"{which}, first in {_place(parting)}", "values diverge")
        yield from output_entries(parting.outputs, None)
    if parting.looks_like is not None:
        yield Entry(_LOOKS[parting.looks_like], "looks like")


def growth_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say where the values first differ by more than rounding, and how far the loss and the parameters drift apart."""
    values = comparison.values
    if values is None or values.first is None:
        return
    beyond = values.beyond_rounding
    if beyond is not None:
        widest = max(output.max_relative or 0.0 for output in beyond.outputs)
        size = f", by {widest:.2g} of the largest element" if widest else ""
        yield Entry(f"first beyond rounding in {_place(beyond)}{size}", "grows")
    yield from _course_entries(values)
    if any(values.alone):
        run = comparison.environment_run
        text = f"{values.alone[0]:,} only in run 1, {values.alone[1]:,} only in run {run}; the others were compared"
        yield Entry(text, "records")


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
            yield Entry(_step_history(sizes), what)


class _Size(NamedTuple):
    """How far apart two values are at one step."""

    step: int
    relative: float | None
    ulp: int | None
    whole: str

    def __str__(self) -> str:
        units = "" if self.ulp is None or self.ulp >= FAR_APART else f"{self.ulp:,} ulp, "
        return f"{units}{self.relative:.2g} of {self.whole}"


def _step_history(sizes: list[_Size]) -> str:
    """Say where values first differ, and where they differ most."""
    apart = [size for size in sizes if size.relative]
    if not apart:
        return "equal at all steps at which values are known"
    first, most = apart[0], max(apart, key=lambda size: size.relative or 0.0)
    text = f"different from step {first.step} on, by {first}"
    return text if most.ulp == first.ulp else f"{text}; most at step {most.step}, by {most}"


def _place(parting: Parting) -> str:
    where = f"{parting.op} at step {parting.step}, {parting.phase}"
    return where if parting.site is None else f"{where}, {line_text(parting.site)}"


# The content of a report, in reading order. Terminal, page, JUnit XML and annotations show these entries.


def compose(comparison: Comparison, content: Document) -> dict[str, Any]:
    """Write the `headline` and the `story` of a report.

    Returns:
        Both, as parts of the document. An entry of the story has a `section`, a `label`, empty where it continues the entry
        above, a `text`, `is_code`, and `is_detail` for entries that are shown only on request.
    """
    return {
        "headline": _headline(comparison, content),
        "story": story_document([*_shown(comparison, content), *_details(comparison)]),
    }


def story_document(entries: Iterable[Entry]) -> list[Document]:
    """Return entries as parts of the JSON document."""
    return [
        {
            "section": entry.section,
            "label": entry.label,
            "text": entry.text,
            "is_code": entry.is_code,
            "is_detail": entry.section is Section.DETAILS,
        }
        for entry in entries
    ]


def _headline(comparison: Comparison, content: Document) -> str:
    if comparison.batch is None or comparison.verdict is Verdict.INCONCLUSIVE:
        return headline(content)
    return batch_headline(comparison, comparison.batch)


def _shown(comparison: Comparison, content: Document) -> Iterator[Entry]:
    """Yield the entries that every report shows."""
    is_different = comparison.verdict is Verdict.DIFFERENT
    yield from _in(Section.NOTES, stack_entries(comparison))
    if is_different:
        yield from _in(Section.NOTES, leftover_entries(comparison))
    yield from _in(Section.CAUSE, missing_entries(comparison))
    if comparison.batch is not None:
        yield from _in(Section.PLACE, batch_entries(comparison, comparison.batch))
    else:
        yield from answer(content)
        if comparison.narrowing is not None:
            yield from narrowing_entries(comparison.narrowing)
        first = comparison.first_divergence
        if first is not None and first.kind is None:
            # Without a kind, the answer says little; this explains why, and what to do.
            yield Entry(kind_sentence(first, comparison.level), "kind", Section.PLACE)
        yield from _in(Section.PLACE, parting_entries(comparison))
        yield from _in(Section.PLACE, growth_entries(comparison))
    yield from _in(Section.NOTES, limiting_entries(comparison))


def _details(comparison: Comparison) -> Iterator[Entry]:
    first = comparison.first_divergence
    if comparison.batch is None:
        if first is not None:
            yield from origin_entries(comparison, first)
        yield from cause_entries(comparison)
        yield from consequence_entries(comparison)
        if comparison.values is not None and comparison.values.note:
            yield Entry(one_paragraph(comparison.values.note), "values")
    yield from detail_entries(comparison)


def _in(section: Section, entries: Iterable[Entry]) -> Iterator[Entry]:
    return (replace(entry, section=section) for entry in entries)
