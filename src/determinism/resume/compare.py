"""Pairs the steps of a resumed run with those of the full run, and finds what a checkpoint lacks.

With `zero_grad(set_to_none=False)` the full run adds a step's first gradient to zeros; a resumed run, which has none yet,
keeps that gradient itself. Both then hold the same. Later records are compared by value, so lost gradients still show.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from determinism.comparison.columns import Canonical, join, keys_of, producers
from determinism.comparison.fingerprints import ordered
from determinism.comparison.ordered import compare_processes
from determinism.comparison.processes import ProcessComparison
from determinism.comparison.recorded import cut_reasons, cut_troubles, environment_differences, recorded_by, summary_of
from determinism.comparison.records import entry_of
from determinism.comparison.result import Comparison, ResumeFindings, Trouble
from determinism.op_semantics import OpSemantics
from determinism.resume.observed import ResumedProcess, of_step, steps_when_saved
from determinism.trace.chunks import Array, Chunk, pick
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import LOAD_OP, RESULTS_OP, Table
from determinism.trace.views import TraceSuffix
from determinism.types import Kind, Phase, Role, Verdict

# Finds where the first step after a checkpoint begins, in the full run and in the resumed one.


def first_step_of_both(full: ProcessTrace, resumed: ProcessTrace, steps: int) -> tuple[int, int] | None:
    """The records with which the first step after the checkpoint begins in both; None if one has no such step.

    Earlier records in that step are building and loading in the resumed run, the end of the previous step in the full one.

    Args:
        full: The uninterrupted run.
        resumed: The resumed run.
        steps: How many steps of the full run precede the checkpoint.

    Raises:
        TraceError: A trace is damaged.
    """
    mine, other = of_step(full, steps), of_step(resumed, 0)
    if mine is None or other is None:
        return None
    batches = [np.flatnonzero(chunk.columns["role"] == Role.BATCH) for chunk in (mine, other)]
    count = min(len(rows) for rows in batches)
    if count:
        return mine.first + int(batches[0][-count]), other.first + int(batches[1][-count])
    is_known = ~np.isin(mine.columns["phase"], (Phase.CHECKPOINT, Phase.INIT))
    usable = [np.flatnonzero(is_known), np.flatnonzero(_has_begun(resumed, other))]
    return _first_common(mine, other, usable, Canonical(full, resumed))


def _has_begun(process: ProcessTrace, chunk: Chunk) -> Array:
    """Which records may belong to the first step: until the last load the program is built; after it the step may begin."""
    ops = process.names.texts(Table.OP)
    loads = np.flatnonzero(chunk.columns["op"] == ops.index(LOAD_OP)) if LOAD_OP in ops else np.zeros(0, np.int64)
    first = int(loads[-1]) + 1 if loads.size else chunk.rows
    found: Array = np.isin(chunk.columns["phase"], (Phase.CHECKPOINT, Phase.INIT), invert=True)
    found[first:] |= chunk.columns["phase"][first:] == Phase.INIT
    return found


def _first_common(mine: Chunk, other: Chunk, usable: list[Array], canonical: Canonical) -> tuple[int, int] | None:
    """The first records that do the same in both, paired from the end of the step."""
    keys = [
        keys_of(pick(in_forward(chunk), rows), canonical, side)
        for side, (chunk, rows) in enumerate(zip((mine, other), usable, strict=True))
    ]
    left, right = join(keys[0][::-1], keys[1][::-1])
    pairs = [(len(keys[0]) - 1 - int(a), len(keys[1]) - 1 - int(b)) for a, b in zip(left, right, strict=True)]
    found: tuple[int, int] | None = None
    for at, its in sorted(pairs, reverse=True):
        if found is None or its < found[1]:
            found = at, its
    return None if found is None else (mine.first + int(usable[0][found[0]]), other.first + int(usable[1][found[1]]))


def in_forward(chunk: Chunk) -> Chunk:
    """The records of a first step, with everything before the backward assigned to the forward.

    Between a batch and the model, a program that has just begun is in a different phase from one that has made a step.
    """
    until = first_backward(chunk)
    phase = chunk.columns["phase"].copy()
    phase[:until] = np.where(np.isin(phase[:until], (Phase.INIT, Phase.OTHER)), Phase.FORWARD, phase[:until])
    return replace(chunk, columns={**chunk.columns, "phase": phase})


def first_backward(chunk: Chunk) -> int:
    """The row with which the backward begins; 0 if there is none, or if forward and backward cannot be distinguished."""
    if not has_phases(chunk):
        return 0
    is_later = np.isin(chunk.columns["phase"], (Phase.BACKWARD, Phase.OPTIMIZER)) | (chunk.columns["role"] == Role.LOSS)
    return int(np.argmax(is_later)) if is_later.any() else 0


def has_phases(chunk: Chunk) -> bool:
    """Whether ops belong to a forward, a backward or an optimizer. A compiled training step of JAX is all of them at once."""
    phases = chunk.columns["phase"][chunk.columns["role"] != Role.LOSS]
    return bool(np.isin(phases, (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)).any())


def losses_before_known(full: ProcessTrace, resumed: ProcessTrace, steps: int, starts: tuple[int, int]) -> list[int]:
    """The losses of the full run that the resumed run could not yet recognize as such.

    In JAX the training function, and with it its loss, is recognized when it is called with its own earlier results: where
    `determinism.step()` ends the steps, a program that has just begun ends the first one without a loss.

    Args:
        full: The uninterrupted run.
        resumed: The resumed run.
        steps: How many steps of the full run precede the checkpoint.
        starts: The records with which the first step after the checkpoint begins in both.

    Returns:
        Their numbers; empty where backwards identify the losses.

    Raises:
        TraceError: A trace is damaged.
    """
    first = of_step(full, steps, starts[0])
    if first is None or has_phases(first):
        return []
    known = [step + steps for step in _losses(resumed, starts[1])]
    found = _losses(full, starts[0])
    return [number for step, numbers in found.items() if not known or step < min(known) for number in numbers]


def _losses(process: ProcessTrace, start: int) -> dict[int, list[int]]:
    """The numbers of the records of losses, by step, from record `start` on."""
    found: dict[int, list[int]] = {}
    for chunk in process.chunks():
        for row in np.flatnonzero((chunk.columns["role"] == Role.LOSS) & (chunk.numbers >= start)):
            found.setdefault(int(chunk.columns["step"][row]), []).append(chunk.first + int(row))
    return found


_ZEROS = ("=0", "=0.0")
_MOST_STEPS = 64
"""A module that is called only now and then gets its first gradient late."""


class Alone(NamedTuple):
    """Numbers of the records that only one of two runs has."""

    full: list[int]
    resumed: list[int]


def alone_with_gradients(full: ProcessTrace, resumed: ProcessTrace, steps: int, starts: tuple[int, int]) -> Alone:
    """The records of only one run, because one has gradients and the other has none yet.

    Args:
        full: The uninterrupted run.
        resumed: The resumed run.
        steps: How many steps of the full run precede the checkpoint.
        starts: The records with which the first step after the checkpoint begins in both.

    Returns:
        Of the full run, records that clear gradients or add to them; of the resumed one, those that keep them, and all that
        it does alone in its first step: what a program makes on first use, such as the scale of a gradient scaler.

    Raises:
        TraceError: A trace is damaged.
    """
    canonical = Canonical(full, resumed)
    found = Alone([], [])
    for step in _steps_to_look_at(full, resumed, steps):
        chunks = [
            of_step(process, number, start)
            for process, number, start in ((full, step, starts[0]), (resumed, step - steps, starts[1]))
        ]
        if chunks[0] is None or chunks[1] is None:
            continue
        sides = [
            _Side(process, in_forward(chunk) if step == steps else chunk)
            for process, chunk in zip((full, resumed), chunks, strict=True)
            if chunk is not None
        ]
        alone = _alone(sides, canonical)
        found.full.extend(sides[0].chunk.first + int(row) for row in alone[0] if sides[0].touches_gradients(int(row)))
        found.resumed.extend(
            sides[1].chunk.first + int(row) for row in alone[1] if step == steps or sides[1].keeps(int(row))
        )
    return found


class _Side:
    """The records of a step of one run."""

    def __init__(self, process: ProcessTrace, chunk: Chunk) -> None:
        self._ops = process.names.ops
        self._arguments = process.names.texts(Table.ARGUMENTS)
        self.chunk = chunk
        is_backward = chunk.columns["phase"] == Phase.BACKWARD
        adds = process.names.ops_that(OpSemantics.ADDS_TO_GRADIENT)
        self.adds: Array = np.flatnonzero(is_backward & np.isin(chunk.columns["op"], adds))
        self.others: Array = np.setdiff1d(np.arange(chunk.rows), self.adds)

    def added(self, row: int) -> tuple[int, int]:
        """What an addition adds: the row of its producer, below 0 if that is in an earlier step, and the output."""
        inputs = self.chunk.children["inputs"]
        if not inputs.of(row):
            return -1, 0
        at = inputs.of(row)[-1]
        distance = int(inputs.columns["producer"][at])
        return (row - distance if distance else -1), int(inputs.columns["output"][at])

    def touches_gradients(self, row: int) -> bool:
        """Whether a record adds to a gradient, or sets one to zero."""
        semantics = self._semantics(row)
        if OpSemantics.CLEARS_BY_ZERO in semantics:
            number = int(self.chunk.columns["arguments"][row])
            return number >= 0 and self._arguments[number].endswith(_ZEROS)
        return bool(semantics & (OpSemantics.ADDS_TO_GRADIENT | OpSemantics.CLEARS))

    def keeps(self, row: int) -> bool:
        """Whether a record may keep a first gradient."""
        is_backward = int(self.chunk.columns["phase"][row]) == Phase.BACKWARD
        return is_backward and OpSemantics.KEEPS_GRADIENT in self._semantics(row)

    def _semantics(self, row: int) -> OpSemantics:
        return self._ops[int(self.chunk.columns["op"][row])].semantics


def _alone(sides: Sequence[_Side], canonical: Canonical) -> tuple[Array, Array]:
    """Rows without a partner. Additions are partners if what they add is paired."""
    keys = [keys_of(side.chunk, canonical, number)[side.others] for number, side in enumerate(sides)]
    paired = join(*keys)
    rows = [side.others[at] for side, at in zip(sides, paired, strict=True)]
    names: list[dict[int, object]] = [{int(row): pair for pair, row in enumerate(of_side)} for of_side in rows]
    added = [_named(side, known) for side, known in zip(sides, names, strict=True)]
    first, second = (
        np.array(
            [
                *np.setdiff1d(side.others, of_side),
                *(row for name, row in additions.items() if name not in other),
            ],
            dtype=np.int64,
        )
        for side, of_side, additions, other in zip(sides, rows, added, reversed(added), strict=True)
    )
    return np.sort(first), np.sort(second)


def _named(side: _Side, names: dict[int, object]) -> dict[object, int]:
    """The additions by what they add, numbered if several add the same."""
    found: dict[object, int] = {}
    times: Counter[object] = Counter()
    for row in side.adds.tolist():
        producer, output = side.added(row)
        adds = names.get(producer, "from before" if producer < 0 else "of its own"), output
        found[adds, times[adds]] = row
        # Backward sums the gradients that reach one tensor, and adds the sum to its gradient.
        names[row] = adds, times[adds]
        times[adds] += 1
    return found


def _steps_to_look_at(full: ProcessTrace, resumed: ProcessTrace, steps: int) -> Iterator[int]:
    """The first step, and the later ones in which one run adds more often than the other."""
    counts = [_additions(process, before) for process, before in ((full, 0), (resumed, steps))]
    yield steps
    unlike = sorted(step for step in counts[0].keys() | counts[1].keys() if counts[0][step] != counts[1][step])
    yield from [step for step in unlike if step > steps][:_MOST_STEPS]


def _additions(process: ProcessTrace, steps_before: int) -> Counter[int]:
    """How often backward adds, and gradients may be cleared, in each step."""
    changes = OpSemantics.ADDS_TO_GRADIENT | OpSemantics.CLEARS | OpSemantics.CLEARS_BY_ZERO
    ops = process.names.ops_that(changes)
    found: Counter[int] = Counter()
    for chunk in process.chunks():
        rows = np.isin(chunk.columns["op"], ops) & (chunk.columns["phase"] != Phase.OPTIMIZER)
        for step, count in zip(*np.unique(chunk.columns["step"][rows], return_counts=True), strict=True):
            found[int(step) + steps_before] += int(count)
    return found


# Finds what only one of two runs is known to hold at the end of a step.
#
# Modules are known from their first call, and optimizers from their first step. So the full run knows an averaged
# model that it evaluated in an earlier epoch, and the second optimizer of a GAN, which a resumed run in its first
# steps does not know yet. That is not a difference in what is held.

Unmatched = dict[int, Array]
"""By the number of a record, the positions of the inputs that only its run has."""


def held_in_one_run(full: ProcessTrace, resumed: ProcessTrace, steps_before: int) -> tuple[Unmatched, Unmatched]:
    """What only one of two runs holds, by name, at the end of a step or of the process.

    Args:
        full: The uninterrupted run.
        resumed: The resumed run.
        steps_before: How many steps of the full run precede the first step of the resumed one.

    Raises:
        TraceError: A trace is damaged.
    """
    mine, other = _ends(full, 0), _ends(resumed, steps_before)
    alone: tuple[Unmatched, Unmatched] = ({}, {})
    compared: dict[tuple[str, str], tuple[Array, Array]] = {}
    for key in mine.keys() & other.keys():
        (number, text), (its_number, its_text) = mine[key], other[key]
        if text == its_text or not (text.startswith("[") and its_text.startswith("[")):
            continue
        if (text, its_text) not in compared:
            compared[text, its_text] = _apart(json.loads(text), json.loads(its_text))
        alone[0][number], alone[1][its_number] = compared[text, its_text]
    return alone


def _ends(process: ProcessTrace, steps_before: int) -> dict[tuple[str, int], tuple[int, str]]:
    """Number and names of each record of what is held, by its op and step."""
    found = {}
    for chunk in process.chunks():
        for row in np.flatnonzero(chunk.columns["role"] == Role.STATE):
            op = process.names.text(Table.OP, int(chunk.columns["op"][row])) or ""
            text = process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row])) or ""
            found[op, int(chunk.columns["step"][row]) + steps_before] = chunk.first + int(row), text
    return found


def _apart(mine: list[list[str]], other: list[list[str]]) -> tuple[Array, Array]:
    """The positions of the names that the other list lacks."""
    lists = [[tuple(name) for name in names] for names in (mine, other)]
    known = set(lists[0]) & set(lists[1])
    first, second = (np.array([at for at, name in enumerate(names) if name not in known], int) for names in lists)
    return first, second


# Compares a run that was resumed from a checkpoint with the same steps of the uninterrupted run.

_UNKNOWN_INPUTS = (
    "The op read part of a value from before the checkpoint, such as a hidden state, and its result differed: that "
    "value was not restored, or not to the same content."
)


def compare_resumed(full: Trace, first: Trace, resumed: Trace) -> list[ResumedProcess]:
    """Compare each process of a resumed run with the same steps of the full run.

    Args:
        full: The uninterrupted run.
        first: The run that saved the checkpoint; it may have continued afterwards.
        resumed: The run that resumed from it.

    Raises:
        TraceError: A trace is damaged.
    """
    by_key: Sequence[dict[str, ProcessTrace]] = [{p.key: p for p in ordered(trace)} for trace in (full, first, resumed)]
    common = [key for key in by_key[0] if all(key in keys for keys in by_key)]
    saved = steps_when_saved(by_key[1].values(), by_key[2].values())
    return [_compare(by_key[0][key], by_key[1][key], by_key[2][key], saved) for key in common]


def _compare(full: ProcessTrace, first: ProcessTrace, resumed: ProcessTrace, saved: Collection[int]) -> ResumedProcess:
    # If the first run continued after it saved, the resumed one repeats those steps, and ends with the full one.
    left = full.extent[1] - resumed.extent[1]
    steps = left if left in saved and left < first.extent[1] else first.extent[1]
    whole = [_count_before(process, steps) for process in (full, first)]
    early = compare_processes(full.until(whole[0]), first.until(whole[1]))
    # Additional work of one of them, such as saving, has not changed anything.
    departs = early if early.divergence is not None and early.divergence.kind is not Kind.STRUCTURE else None
    starts = first_step_of_both(full, resumed, steps)
    compared = min(full.extent[1] - steps, resumed.extent[1])
    if starts is None or compared <= 0:
        return ResumedProcess(full, first, resumed, steps, ProcessComparison(full.key), None, 0, departs)
    unseen = alone_with_gradients(full, resumed, steps, starts)
    unseen.full.extend(losses_before_known(full, resumed, steps, starts))
    alone = [
        {**held, **results_of_before(process, start, step)}
        for held, process, start, step in zip(
            held_in_one_run(full, resumed, steps), (full, resumed), starts, (steps, 0), strict=True
        )
    ]
    ends = _backward_begins(full, steps, starts[0]), _backward_begins(resumed, 0, starts[1])
    parts = (
        TraceSuffix(full, starts[0], forward_until=ends[0], skipped=unseen.full, without=alone[0]),
        TraceSuffix(
            resumed, starts[1], forward_until=ends[1], steps_before=steps, unseen=unseen.resumed, without=alone[1]
        ),
    )
    result = compare_processes(*parts)
    _doubt_op(result, parts)
    return ResumedProcess(full, first, resumed, steps, result, parts, compared, departs)


def results_of_before(process: ProcessTrace, start: int, step: int) -> dict[int, Array]:
    """The inputs of the first step's record of unread values that were made before the step, while building or loading.

    Args:
        process: Either run.
        start: The record with which the first step after the checkpoint begins.
        step: Its number.

    Returns:
        The positions of those inputs, by the number of the record.
    """
    chunk = of_step(process, step, start)
    ops = process.names.texts(Table.OP)
    if chunk is None or RESULTS_OP not in ops:
        return {}
    inputs = chunk.children["inputs"]
    made_by = producers(chunk)
    found: dict[int, Array] = {}
    for row in np.flatnonzero(chunk.columns["op"] == ops.index(RESULTS_OP)).tolist():
        earlier = np.flatnonzero(made_by[inputs.part(row)] < start)
        if len(earlier):
            found[chunk.first + row] = earlier
    return found


def _doubt_op(result: ProcessComparison, parts: tuple[TraceSuffix, TraceSuffix]) -> None:
    """Blame no op that read a value from before the checkpoint whose content is unknown."""
    divergence = result.divergence
    if divergence is None or divergence.kind is not Kind.OP:
        return
    part = parts[divergence.records_of]
    read = entry_of(part, *part.record(divergence.record)).reads
    if any(one.producer < 0 and one.digest is None and one.layout is not None for one in read):
        result.divergence = replace(divergence, kind=Kind.DATA, inputs_equal=None, detail=_UNKNOWN_INPUTS)


def _count_before(process: ProcessTrace, step: int) -> int:
    return sum(int((chunk.columns["step"] < step).sum()) for chunk in process.chunks())


def _backward_begins(process: ProcessTrace, step: int, start: int) -> int:
    """The record with which the backward of a step begins."""
    chunk = of_step(process, step, start)
    return start if chunk is None else chunk.first + first_backward(chunk)


# Reaches a verdict about a resumed run.


def conclude_resumed(processes: Sequence[ResumedProcess], full: Trace, first: Trace, resumed: Trace) -> Comparison:
    """Combine the results of the processes into one, whose runs are the full one, the resumed one and the one that saved.

    Args:
        processes: How each process compares.
        full: The uninterrupted run.
        first: The run that saved.
        resumed: The resumed run.
    """
    traces = [full, resumed, first]
    compared = [process for process in processes if process.parts is not None]
    comparison = Comparison(
        Verdict.SAME,
        tuple(summary_of(trace) for trace in traces),
        replace(
            recorded_by(traces),
            steps=max((process.steps for process in compared), default=0),
            records=sum(
                max(process.full.extent[0] - process.parts[0].start, 0) for process in compared if process.parts
            ),
        ),
        dead_differences=sum(process.result.dead_differences for process in compared),
        dead_first=tuple(dead for process in compared for dead in process.result.dead_first)[:_MOST_DEAD],
        environment=tuple(environment_differences(full, resumed)),
        resume=ResumeFindings(),
    )
    trouble = []
    if len(compared) < len(processes) or not compared:
        trouble.append(Trouble("resume-nothing-compared", _nothing_compared(processes)))
    departing = [process for process in processes if process.result.divergence is not None]
    departing.sort(key=order_of_divergence)
    unlike = next((process for process in processes if process.first_departs is not None), None)
    in_turns = next((one for one in departing if one.full.steps_in_turns), None)
    if in_turns is not None and unlike is None:
        trouble.append(Trouble("resume-steps-in-turns", _in_turns(in_turns)))
    elif departing and unlike is None:
        return replace(_with_departure(comparison, departing), trouble=tuple(trouble))
    if departing and unlike is not None:
        trouble.append(Trouble("resume-first-departs", _first_departs(unlike)))
    trouble += cut_troubles(traces, [cut_reasons(trace) for trace in traces])
    return replace(comparison, verdict=Verdict.INCONCLUSIVE if trouble else Verdict.SAME, trouble=tuple(trouble))


_MOST_DEAD = 5
"""How many dead differences are described."""


def order_of_divergence(process: ResumedProcess) -> tuple[int, int, str]:
    """A sort key, earliest first: within a step, ranks exchange results of the forward only in the backward."""
    divergence = process.result.divergence
    assert divergence is not None
    return divergence.step, Phase[divergence.phase.upper()], process.full.key


def _with_departure(comparison: Comparison, departing: list[ResumedProcess]) -> Comparison:
    result = departing[0].result
    others = (process.result.divergence for process in departing[1:])
    return replace(
        comparison,
        verdict=Verdict.DIFFERENT,
        first_divergence=result.divergence,
        divergences=tuple(divergence for divergence in others if divergence is not None),
        first_visible=result.first_visible,
        infected=tuple(result.infected),
        dataflow=result.dataflow,
        absorbed=result.absorbed,
    )


def _nothing_compared(processes: Sequence[ResumedProcess]) -> str:
    if not processes:
        return (
            "No process was recorded in all three runs, so there is nothing to compare. Give three commands "
            "that start the same program."
        )
    process = next(one for one in processes if one.parts is None)
    counts = (process.full.extent[1], process.steps_before, process.resumed.extent[1])
    return (
        f"The full run made {counts[0]} steps, the first {counts[1]} and the resumed one {counts[2]}, so no step of the resumed run has a "
        "counterpart in the full one. The full run must continue beyond the step at which the first one ends, and the resumed one from there. If "
        "no optimizer counts the steps, call determinism.step()."
    )


def _in_turns(process: ResumedProcess) -> str:
    divergence = process.result.divergence
    assert divergence is not None
    return (
        f"The resumed run differs from the full one at step {divergence.step}, but two compiled functions train in turns, and steps were "
        "counted first by one and then by the other. A resumed run may count them differently, so the same step need not hold the same work. Call "
        "determinism.step() at the end of each iteration, and check again."
    )


def _first_departs(process: ResumedProcess) -> str:
    assert process.first_departs is not None and process.first_departs.divergence is not None
    divergence = process.first_departs.divergence
    where = "" if divergence.site is None else f" at {divergence.site.file}:{divergence.site.line}"
    return (
        f"The first run already diverges from the full one at step {divergence.step}, in {divergence.op}{where} "
        f"({divergence.kind}), before anything was resumed. So what the checkpoint lacks cannot be determined. Make "
        "the program deterministic first: `determinism check` names the cause, `determinism run` applies the "
        "settings."
    )
