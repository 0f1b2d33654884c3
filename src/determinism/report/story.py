"""The story of the first divergence: what differs, where, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator

from determinism.comparison.divergence import Divergence, is_repeatable
from determinism.comparison.result import Comparison
from determinism.comparison.stack import stack_differences
from determinism.report.entry import Entry, Tone, Weight
from determinism.report.evidence import evidence_entries, output_entries
from determinism.report.places import frame_text, line_text
from determinism.report.wording import kind_sentence, prose
from determinism.trace.names import Frame
from determinism.types import Kind, Level

MOST_FRAMES = 4
MOST_INFECTED = 6
MOST_RECEIVERS = 3
_ONLY_READ = ("value read by", "printed tensor")


def origin_entries(comparison: Comparison, first: Divergence) -> Iterator[Entry]:
    """Say what differs first, in which op, and at which line of the program."""
    yield Entry(kind_sentence(first, comparison.level), "kind", Weight.CORE)
    yield Entry(first.op, "op", Weight.CORE)
    if first.module is not None:
        yield Entry(first.module or "the outermost module", "module")
    yield Entry(_where(comparison, first), "where")
    yield from _site_entries(first)
    if first.detail:
        yield Entry(prose(first.detail), "detail", Weight.CORE, lines=4)
    inputs = _inputs_sentence(first, comparison)
    if inputs:
        yield Entry(inputs, "inputs")
    yield from output_entries(first.outputs, comparison.evidence)
    yield from evidence_entries(comparison)


def consequence_entries(comparison: Comparison) -> Iterator[Entry]:
    """Say who received the difference, where it became visible, what it reached, and whether it vanished."""
    yield from _receiver_entries(comparison)
    first = comparison.first_visible
    if first is not None:
        place = f" at {line_text(first.site)}" if first.site else ""
        yield Entry(f"first at step {first.step}: {first.what}{place}", "visible", Weight.CONSEQUENCE, lines=2)
    infected = [value for value in comparison.infected if value != first]
    if infected:
        shown = [f"{value.what} (step {value.step})" for value in infected[:MOST_INFECTED]]
        more = len(infected) - MOST_INFECTED
        text = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        yield Entry(text, "reached", Weight.CONSEQUENCE)
    elif (
        first is not None
        and first.what.startswith(_ONLY_READ)
        and comparison.recorded.steps_by not in (None, "batches")
    ):
        yield Entry(
            "nothing that was trained or saved: only what the program reads differs", "reached", Weight.CONSEQUENCE
        )
    if comparison.absorbed:
        text = "The difference was read and then vanished: it reached nothing that was kept."
        if comparison.recorded.blind_spots:
            text += " What was not recorded (see the blind spots) may have kept it."
        yield Entry(text, "absorbed", Weight.CONSEQUENCE)


def _receiver_entries(comparison: Comparison) -> Iterator[Entry]:
    receivers = [divergence for divergence in comparison.divergences if divergence.received_from is not None]
    for number, one in enumerate(receivers[:MOST_RECEIVERS]):
        receiver = f"thread {one.thread}" if one.thread is not None else f"process {one.process}"
        sender = "another thread" if one.received_from == one.process else f"process {one.received_from}"
        place = f" at {line_text(one.site)}" if one.site else ""
        text = f"{receiver} received it from {sender}, in {one.op}{place} (step {one.step})"
        yield Entry(text, "" if number else "received", Weight.ITEM if number else Weight.CONSEQUENCE, lines=3)
    more = len(receivers) - MOST_RECEIVERS
    if more > 0:
        yield Entry(f"and so did {more:,} more", weight=Weight.ITEM)


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
        yield from _frame_entries(first.site, "site", Weight.CORE)
    if first.forward_site is not None:
        yield from _frame_entries(first.forward_site, "forward site", Weight.CORE)
    callers = [frame for frame in first.stack if frame not in (first.site, first.forward_site)]
    for number, frame in enumerate(callers[:MOST_FRAMES]):
        yield Entry(frame_text(frame), "" if number else "called by", Weight.EXTRA, lines=2)


def _frame_entries(frame: Frame, label: str, weight: Weight) -> Iterator[Entry]:
    yield Entry(frame_text(frame), label, weight)
    code = frame.code.strip()
    if code:
        yield Entry(code, weight=weight, tone=Tone.CODE, lines=2, indent=4)


def _inputs_sentence(first: Divergence, comparison: Comparison) -> str | None:
    if first.inputs_equal is not None:
        if not first.inputs_equal:
            return "not equal: they differ already"
        return "equal in both runs" if len(comparison.runs) == 2 else "equal in all runs"
    if first.kind is not Kind.OP or comparison.level != Level.OP:
        # The cause is known without them, or there is nothing to compare them with; other levels do not follow inputs.
        return None
    if first.stream is not None:
        return (
            "It is not known whether the inputs were equal: a further run shares out the work among threads otherwise."
        )
    if not is_repeatable(first.op):
        return "It is not known whether the inputs were equal: what ran here is no single op that could be repeated."
    if comparison.missed_in_confirming_run:
        return "It is not known whether the inputs were equal: the confirming run did not come to this record."
    if stack_differences(comparison.environment):
        return "They come from records that are equal in both runs; what they held was not looked at again."
    return "It was not checked whether the inputs were equal; `determinism check --explain` finds out."
