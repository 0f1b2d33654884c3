"""Tells what the program keeps itself, from what the first op that departs was given."""

from __future__ import annotations

from typing import NamedTuple

from determinism.comparison.first_step import of_step
from determinism.comparison.origins import Entry, Input, entry
from determinism.comparison.resumed import ResumedProcess
from determinism.diagnose.resumed_evidence import digests
from determinism.trace.names import Frame
from determinism.trace.reader import ProcessTrace
from determinism.types import Kind


class Kept(NamedTuple):
    """Something that the program keeps itself."""

    identifier: str
    """`carried-tensor`, or `own-data` for what is no tensor."""
    made_at: Frame | None
    """The line of the full run that made it last, of a tensor."""


def kept_by_program(process: ResumedProcess, record: Entry) -> Kept | None:
    """What the program keeps itself, if what departs read that.

    A tensor that was made before the checkpoint, and is nowhere in the resumed run, was carried over from step to step. What came from
    outside of the framework was made of something else.

    Args:
        process: How a process of the resumed run compares.
        record: The first divergence.

    Raises:
        TraceError: A trace is damaged.
    """
    divergence, parts = process.result.divergence, process.parts
    if divergence is None or parts is None or divergence.records_of or divergence.kind is not Kind.DATA:
        return None
    partner = _partner(parts[1], record, divergence.step, _occurrence(parts[0], record, divergence.step))
    if partner is None:
        return None
    number = divergence.record + parts[0].start
    whole = entry(process.full, *process.full.record(number))
    is_outside = False
    for position, (mine, other) in enumerate(zip(record.reads, partner.reads, strict=False)):
        held = _digest(parts[0], mine)
        if held is not None and held == _digest(parts[1], other):
            continue
        source = whole.reads[position].producer
        if 0 <= source < parts[0].start and _is_lost(process, source, whole.reads[position].output):
            return Kept("carried-tensor", _line(process.full, source))
        is_outside |= source < 0 and other.producer < 0
    return Kept("own-data", None) if is_outside else None


def _is_lost(process: ResumedProcess, number: int, output: int) -> bool:
    """Whether what a record of the full run gave never was in the resumed run."""
    made = entry(process.full, *process.full.record(number)).outputs
    return output < len(made) and made[output].digest not in digests(process.resumed, upto_step=0)


def _digest(process: ProcessTrace, one: Input) -> bytes | None:
    if one.producer < 0:
        return one.digest
    made = entry(process, *process.record(one.producer)).outputs
    return made[one.output].digest if one.output < len(made) else None


def _occurrence(process: ProcessTrace, record: Entry, step: int) -> int:
    """How many such records there are before it in its step."""
    return sum(one.number < record.number for one in _alike(process, record, step))


def _partner(process: ProcessTrace, record: Entry, step: int, occurrence: int) -> Entry | None:
    alike = _alike(process, record, step)
    return alike[occurrence] if occurrence < len(alike) else None


def _alike(process: ProcessTrace, record: Entry, step: int) -> list[Entry]:
    """The records of a step with the op and the module of a record."""
    chunk = of_step(process, step)
    found = () if chunk is None else (entry(process, chunk, row) for row in range(chunk.rows))
    return [one for one in found if (one.op, one.module, one.phase) == (record.op, record.module, record.phase)]


def _line(process: ProcessTrace, number: int) -> Frame | None:
    chunk, row = process.record(number)
    stack = process.names.stack(int(chunk.columns["stack"][row]))
    return stack[0] if stack else None
