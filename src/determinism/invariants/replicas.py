"""Checks that ranks which hold replicas of a parameter keep them equal, and that these ranks do not train on the same batches.

Which ranks hold replicas is taken from the trace. They are those whose parameter and gradient were equal after two steps with
different gradients: ranks that train apart have different gradients, and a gradient that is always zero says nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from determinism.comparison.records import Entry, Input, entry_of
from determinism.op_semantics import OpSemantics
from determinism.trace.chunks import Chunk
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.schema import STEP_OP, Frame, Table
from determinism.types import NO_DIGEST, Role, Stream

_RANK = re.compile(r"(?:.*\.)?rank-(\d+)")
_HELD_KINDS = {"determinism::parameter": "parameter", "determinism::gradient": "gradient"}
_KINDS = ("gradient", "parameter")
"""In the order in which a step computes them."""
_MOST_WRITES = 64
"""To one tensor in one step that are followed back."""
_LEAST_SHARED = 2
"""Batches that two ranks must have in common: samplers repeat samples to fill the last one of an epoch."""


class Value(NamedTuple):
    """What a rank holds under a name as a step ends."""

    form: str
    """Dtype and shape of the tensor, and the part of it that the digest is of."""
    digest: bytes
    record: int
    """That wrote it last; -1 where no op is recorded."""
    output: int = 0
    """Which of the outputs of that record it is."""


class Step(NamedTuple):
    """The end of a step of one rank."""

    number: int
    values: Mapping[tuple[str, str], Value]
    """By kind and name."""
    batches: tuple[bytes, ...]
    """Digests of the batch before each loss."""
    batch_stack: int
    """Where the last of them was asked for."""
    began: int
    """Number of the first record of the step."""


@dataclass(frozen=True)
class Violation:
    """Something that must agree within a run, and does not."""

    invariant: str
    """`replicas` or `split-batches`."""
    step: int
    ranks: tuple[int, ...]
    """That differ from the others, or all ranks concerned if none can be told from the others."""
    others: tuple[int, ...]
    """That they were compared with."""
    what: str
    names: tuple[str, ...] = ()
    """Of all tensors that differ in this step."""
    op: str | None = None
    site: Frame | None = None
    """Line of the first op of the step that only the differing rank ran, or whose result differs there."""


@dataclass
class InvariantFindings:
    """What was compared within a run, and what did not agree."""

    violations: list[Violation] = field(default_factory=list)
    ranks: int = 0
    steps: int = 0
    """That all ranks made."""
    replicas: int = 0
    """Parameters that at least two ranks hold."""
    incomplete: list[str] = field(default_factory=list)
    """Processes of which records are missing."""


def check_replicas(trace: Trace) -> InvariantFindings:
    """Compare what the ranks of a run hold after each step.

    Args:
        trace: Of one run, at any level.

    Raises:
        TraceError: It is damaged.
    """
    ranks = _ranks(trace)
    findings = InvariantFindings(ranks=len(ranks))
    if len(ranks) < 2:
        return findings
    replicas = _Replicas(ranks, findings)
    for steps in zip(*(_steps(process) for process in ranks.values()), strict=False):
        findings.steps += 1
        replicas.add(steps)
    findings.incomplete = [
        process.key for process in ranks.values() if process.truncated or process.stopped_by is not None
    ]
    return findings


def _ranks(trace: Trace) -> dict[int, ProcessTrace]:
    """The main streams of the processes that are ranks, by rank."""
    found = {}
    for process in trace.processes:
        matched = _RANK.fullmatch(process.key)
        if matched and process.description.get("stream", Stream.PROCESS) == Stream.PROCESS:
            found[int(matched[1])] = process
    return dict(sorted(found.items()))


class _Replicas:
    """Learns which ranks hold replicas, and sees whether they stay equal."""

    def __init__(self, ranks: Mapping[int, ProcessTrace], findings: InvariantFindings) -> None:
        self._numbers = list(ranks)
        self._processes = list(ranks.values())
        self._findings = findings
        self._seen: dict[str, tuple[list[Any], list[bytes]]] = {}
        """By parameter: which ranks agreed after an earlier step, and their gradients then."""
        self._groups: dict[str, list[list[int]]] = {}
        """By parameter: places of ranks that hold replicas."""
        self._shared: Counter[tuple[int, int]] = Counter()
        self._are_replicas_parted = False
        self._is_batch_told = False

    def add(self, steps: Sequence[Step]) -> None:
        """Take the end of one step of all ranks."""
        if not self._are_replicas_parted:
            self._compare(steps)
            self._learn(steps)
        if not self._is_batch_told:
            self._compare_batches(steps)

    def _learn(self, steps: Sequence[Step]) -> None:
        for name in (name for kind, name in steps[0].values if kind == "parameter"):
            if name in self._groups:
                continue
            found = [(step.values.get(("parameter", name)), step.values.get(("gradient", name))) for step in steps]
            keys = [
                (place,) if value is None or gradient is None else (value[:2], gradient[:2])
                for place, (value, gradient) in enumerate(found)
            ]
            gradients = [b"" if gradient is None else gradient.digest for _, gradient in found]
            before = self._seen.get(name)
            self._seen[name] = (keys, gradients)
            if before is None:
                continue
            places: dict[Any, list[int]] = {}
            for place, key in enumerate(keys):
                if gradients[place] != before[1][place]:
                    places.setdefault((key, before[0][place]), []).append(place)
            groups = [group for group in places.values() if len(group) > 1]
            if groups:
                self._groups[name] = groups
                self._findings.replicas += 1
                del self._seen[name]

    def _compare(self, steps: Sequence[Step]) -> None:
        apart: list[tuple[str, str, list[int]]] = []
        for name, groups in self._groups.items():
            apart += [
                (kind, name, group) for kind in _KINDS for group in groups if self._differs(steps, kind, name, group)
            ]
        if apart:
            self._are_replicas_parted = True
            self._findings.violations.append(self._parted(steps, apart))

    @staticmethod
    def _differs(steps: Sequence[Step], kind: str, name: str, group: Sequence[int]) -> bool:
        values = [value for place in group if (value := steps[place].values.get((kind, name))) is not None]
        # Of a tensor that was written in part, the digest is of that part: it says nothing beside that of a whole one.
        return len({value.form for value in values}) == 1 and len({value.digest for value in values}) > 1

    def _parted(self, steps: Sequence[Step], apart: Sequence[tuple[str, str, list[int]]]) -> Violation:
        kind = min((one[0] for one in apart), key=_KINDS.index)
        of_kind = [one for one in apart if one[0] == kind]
        candidates = []
        for _, name, group in of_kind:
            mine, other, is_clear = _odd_one(steps, kind, name, group)
            entry, is_extra = self._first_difference(steps, kind, name, mine, other)
            if is_extra is None and not is_clear:
                entry, reverse = self._first_difference(steps, kind, name, other, mine)
                if reverse:
                    mine, other, is_extra = other, mine, True
            place = entry[0].number if entry is not None else -1
            candidates.append((not is_extra, place, name, mine, other, is_clear or bool(is_extra), entry))
        _, _, name, mine, other, is_clear, entry = min(candidates, key=lambda one: one[:5])
        group = next(group for _, of, group in of_kind if of == name)
        digest = steps[mine].values[kind, name].digest
        odd = [place for place in group if steps[place].values[kind, name].digest == digest]
        others = [place for place in group if place not in odd]
        if not is_clear:
            odd, others = group, group
        return Violation(
            "replicas", steps[mine].number, self._named(odd), self._named(others), f"{kind} {name}",
            tuple(dict.fromkeys(f"{of} {called}" for of, called, _ in apart)),
            None if entry is None else str(entry[0].op), None if entry is None else entry[1],
        )  # fmt: skip

    def _named(self, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._numbers[place] for place in places)

    def _first_difference(
        self, steps: Sequence[Step], kind: str, name: str, mine: int, other: int
    ) -> tuple[tuple[Entry, Frame | None] | None, bool | None]:
        """The first write of a step to a tensor that one rank made alone, or whose result differs from that of another.

        Returns:
            The write, and whether the other rank has none like it; None and None where there is no such write.
        """
        own, compared = (
            list(_writes(self._processes[place], steps[place].values[kind, name], steps[place].began))[::-1]
            for place in (mine, other)
        )
        for position, (entry, frame) in enumerate(own):
            if position >= len(compared):
                return (entry, frame), True
            theirs, place = compared[position]
            if (entry.op, frame) != (theirs.op, place):
                is_extra = len(own) > len(compared)
                return ((entry, frame), True) if is_extra else (None, None)
            if [made.digest for made in entry.outputs] != [made.digest for made in theirs.outputs]:
                return (entry, frame), None
        return None, None

    def _compare_batches(self, steps: Sequence[Step]) -> None:
        groups = list(self._groups.values())
        if not groups or len(groups) < sum(kind == "parameter" for kind, _ in steps[0].values):
            # Ranks that hold parts of one model take the same batch.
            return
        first_of: dict[tuple[bytes, ...], int] = {}
        for place in groups[0][0]:
            batches = steps[place].batches
            if not batches:
                continue
            same = first_of.setdefault(batches, place)
            if same == place:
                continue
            self._shared[same, place] += 1
            if self._shared[same, place] >= _LEAST_SHARED:
                self._is_batch_told = True
                stack = self._processes[place].names.stack(steps[place].batch_stack)
                self._findings.violations.append(
                    Violation(
                        "split-batches", steps[place].number, self._named([place]), self._named([same]), "batch",
                        site=stack[0] if stack else None,
                    )
                )  # fmt: skip
                return


def _odd_one(steps: Sequence[Step], kind: str, name: str, group: Sequence[int]) -> tuple[int, int, bool]:
    """A rank that differs, one to compare it with, and whether most ranks agree against it."""
    digests = {place: steps[place].values[kind, name].digest for place in group if (kind, name) in steps[place].values}
    (most, count), *_ = counted = Counter(digests.values()).most_common()
    mine = next(place for place in reversed(digests) if digests[place] != most)
    other = next(place for place, digest in digests.items() if digest == most)
    return mine, other, count > counted[1][1]


def _writes(process: ProcessTrace, value: Value, began: int) -> Iterator[tuple[Entry, Frame | None]]:
    """The writes of a step to a tensor, the last one first."""
    record, output = value.record, value.output
    for _ in range(_MOST_WRITES):
        if record < began:
            return
        chunk, row = process.record(record)
        entry = entry_of(process, chunk, row)
        stack = process.names.stack(int(chunk.columns["stack"][row]))
        yield entry, stack[0] if stack else None
        before = _written_before(entry, output)
        record, output = (-1, 0) if before is None else (before.producer, before.output)


def _written_before(entry: Entry, output: int) -> Input | None:
    """What an op found in the memory that it wrote."""
    semantics = entry.op.semantics
    if entry.carries:
        return entry.carries[min(output, len(entry.carries) - 1)]
    if OpSemantics.IN_PLACE in semantics and OpSemantics.COPIES_INTO not in semantics and output < len(entry.inputs):
        # What it changes comes first among its arguments.
        return entry.inputs[output]
    return None


def _steps(process: ProcessTrace) -> Iterator[Step]:
    """The ends of the steps of a rank, in order."""
    names = process.names
    values: dict[tuple[str, str], Value] = {}
    batches: list[bytes] = []
    last: bytes | None = None
    last_stack = stack = -1
    began = 0
    for chunk in process.chunks():
        ops = names.texts(Table.OP)
        roles = chunk.columns["role"]
        for row in range(chunk.rows):
            role = int(roles[row])
            if role == Role.BATCH:
                digests = chunk.children["outputs"].digests_of(row)
                last = b"".join(digests) if digests and NO_DIGEST not in digests else None
                last_stack = int(chunk.columns["stack"][row])
            elif role == Role.LOSS and last is not None:
                batches.append(last)
                last, stack = None, last_stack
            elif role == Role.HELD:
                values.update(_held(process, chunk, row, ops[int(chunk.columns["op"][row])]))
            elif role == Role.STATE and ops[int(chunk.columns["op"][row])] == STEP_OP:
                values.update(_state(process, chunk, row))
                yield Step(int(chunk.columns["step"][row]), dict(values), tuple(batches), stack, began)
                values = {name: value for name, value in values.items() if value.record < 0 and name[0] == "parameter"}
                batches, began = [], chunk.number(row) + 1


def _held(process: ProcessTrace, chunk: Chunk, row: int, op: str) -> Iterator[tuple[tuple[str, str], Value]]:
    """A tensor that has a record of its own, as at level step."""
    kind = _HELD_KINDS.get(op)
    name = process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row]))
    entry = entry_of(process, chunk, row)
    if kind and name and entry.outputs and entry.outputs[0].digest != NO_DIGEST:
        yield (kind, name), Value(_form(entry.outputs[0].layout), entry.outputs[0].digest, -1)


def _state(process: ProcessTrace, chunk: Chunk, row: int) -> Iterator[tuple[tuple[str, str], Value]]:
    """What is held, by the records that wrote it, as at level op."""
    text = process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row])) or "[]"
    try:
        described = json.loads(text)
    except ValueError:
        return
    entry = entry_of(process, chunk, row)
    for named, held in zip(described if isinstance(described, list) else [], entry.inputs, strict=False):
        if isinstance(named, list) and len(named) == 2 and named[0] in _KINDS and isinstance(named[1], str):
            value = _value(process, held)
            if value is not None:
                yield (named[0], named[1]), value


def _value(process: ProcessTrace, held: Input) -> Value | None:
    if held.digest is not None:
        return Value(_form(held.layout), held.digest, held.producer, held.output)
    if held.producer < 0:
        return None
    chunk, row = process.record(held.producer)
    outputs = entry_of(process, chunk, row).outputs
    if held.output >= len(outputs) or outputs[held.output].digest == NO_DIGEST:
        return None
    made = outputs[held.output]
    return Value(f"{_form(held.layout)} of {_form(made.layout)}", made.digest, held.producer, held.output)


def _form(layout: Any) -> str:
    return "value" if layout is None else f"{layout.dtype} {list(layout.shape)} {list(layout.strides)}"
