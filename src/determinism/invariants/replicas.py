"""Check that replicas of a parameter stay equal on all ranks that hold them, and which ranks train on the same batches.

Ranks with replicas, or shards that `fully_shard` gathers, split the batches. Ranks with parts of one model share them.

The trace shows which ranks hold replicas: those of a `DistributedDataParallel` module, if the run was recorded with
its invariants, and those whose gradients of the parameter were equal after two steps and changed in between. Ranks that
train separately have different gradients, and a gradient that is always zero proves nothing.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from determinism.comparison.records import Entry, Input, entry_of
from determinism.invariants.findings import (
    REPLICAS,
    SHARED_BATCHES,
    SPLIT_BATCHES,
    InvariantFindings,
    Violation,
    ranks_of,
)
from determinism.op_semantics import OpSemantics
from determinism.trace.chunks import Chunk
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import CALLED_OP, DIVIDED_OP, REPLICATED_OP, STEP_OP, Frame, Table
from determinism.types import NO_DIGEST, Role

_HELD_KINDS = {"determinism::parameter": "parameter", "determinism::gradient": "gradient"}
_KINDS = ("gradient", "parameter")
"""Kinds in the order in which a step computes them."""
_MOST_WRITES = 64
"""How many writes to one tensor in one step are followed back."""
_MOST_EARLIER = 4
"""How many steps are kept, to find since when parameters have differed that are later found to be replicas."""
_LEAST_SHARED = 2
"""How many batches two ranks must have in common: samplers repeat samples to fill the last batch of an epoch."""


class Value(NamedTuple):
    """The tensor that a rank holds under a name at the end of a step."""

    form: str
    """Dtype and shape of the tensor, and of the part of it that was digested."""
    digest: bytes
    record: int
    """Number of the record that wrote it last; -1 if no ops are recorded."""
    output: int = 0
    """Index among the outputs of that record."""


class Replicated(NamedTuple):
    """Parameters that the program declares as replicated."""

    ranks: tuple[int, ...]
    names: tuple[str, ...]


class Divided(NamedTuple):
    """Ranks that hold parts of one model."""

    ranks: tuple[int, ...]
    is_shared: bool
    """Whether they compute parts of the same batches."""


class Step(NamedTuple):
    """The end of a step of one rank."""

    number: int
    values: Mapping[tuple[str, str], Value]
    """Tensors by kind and name."""
    batches: tuple[bytes, ...]
    """Digests of the batch before each loss."""
    batch_stack: int
    """Stack that requested the last of these batches."""
    began: int
    """Number of the first record of the step."""
    replicated: tuple[Replicated, ...] = ()
    """Replicas that the program has declared so far."""
    divided: tuple[Divided, ...] = ()
    """Parts of the model that the program has declared so far."""
    inputs: tuple[bytes, ...] = ()
    """Digest of the first input of each call, with grad, of an outermost module."""


def check_replicas(trace: Trace, findings: InvariantFindings) -> None:
    """Compare the tensors that the ranks of a run hold after each step, and add what violates this to the findings.

    Raises:
        TraceError: The trace is damaged.
    """
    ranks = ranks_of(trace)
    findings.ranks = len(ranks)
    if len(ranks) < 2:
        return
    replicas = _Replicas(ranks, findings)
    for steps in zip(*(_steps(process) for process in ranks.values()), strict=False):
        findings.steps += 1
        replicas.add(steps)


class _Replicas:
    """Finds out which ranks hold replicas and whether these stay equal."""

    def __init__(self, ranks: Mapping[int, ProcessTrace], findings: InvariantFindings) -> None:
        self._numbers = list(ranks)
        self._processes = list(ranks.values())
        self._findings = findings
        self._seen: dict[str, tuple[list[Any], list[bytes]]] = {}
        """By parameter: keys that are equal for ranks with equal gradients after an earlier step, and the gradients."""
        self._groups: dict[str, list[list[int]]] = {}
        """By parameter: groups of ranks that hold replicas, as indices."""
        self._declared: set[str] = set()
        """Parameters that the program declared as replicas."""
        self._latest: deque[Sequence[Step]] = deque(maxlen=_MOST_EARLIER)
        self._shared: Counter[tuple[int, int]] = Counter()
        self._are_replicas_parted = False
        self._is_batch_told = False

    def add(self, steps: Sequence[Step]) -> None:
        """Process the end of one step on all ranks."""
        self._latest.append(steps)
        if not self._are_replicas_parted:
            self._declare(steps)
            self._compare(steps, self._groups)
        if not self._are_replicas_parted:
            self._learn(steps)
        if not self._is_batch_told:
            self._compare_batches(steps)

    def _declare(self, steps: Sequence[Step]) -> None:
        for replicated in steps[0].replicated:
            places = [
                place
                for place, step in enumerate(steps)
                if self._numbers[place] in replicated.ranks and replicated in step.replicated
            ]
            for name in replicated.names if len(places) > 1 else ():
                if name not in self._groups:
                    self._groups[name] = [places]
                    self._declared.add(name)
                    self._findings.compared[REPLICAS] += 1

    def _learn(self, steps: Sequence[Step]) -> None:
        parted: dict[str, list[list[int]]] = {}
        for name in (name for kind, name in steps[0].values if kind == "parameter"):
            if name in self._groups:
                continue
            found = [step.values.get(("gradient", name)) for step in steps]
            keys = [
                (place,) if value is None or ("parameter", name) not in steps[place].values else value[:2]
                for place, value in enumerate(found)
            ]
            gradients = [b"" if gradient is None else gradient.digest for gradient in found]
            before = self._seen.get(name)
            self._seen[name] = (keys, gradients)
            if before is None:
                continue
            places: dict[Any, list[int]] = {}
            for place, key in enumerate(keys):
                if gradients[place] != before[1][place]:
                    places.setdefault((key, before[0][place]), []).append(place)
            groups = [group for group in places.values() if len(group) > 1 and not self._is_behind(name, group)]
            if groups:
                self._groups[name] = groups
                self._findings.compared[REPLICAS] += 1
                del self._seen[name]
                if any(self._differs(steps, "parameter", name, group) for group in groups):
                    parted[name] = groups
        if parted:
            self._compare(self._first_parted(parted), parted)

    def _is_behind(self, name: str, group: Sequence[int]) -> bool:
        """Whether a rank holds another's old value: the owner of an optimizer shard has yet to send the new one."""
        now, before = (
            {value.digest for place in group if (value := steps[place].values.get(("parameter", name))) is not None}
            for steps in (self._latest[-1], self._latest[-2])
        )
        return len(now) > 1 and not now.isdisjoint(before)

    def _first_parted(self, parted: Mapping[str, list[list[int]]]) -> Sequence[Step]:
        """Return the first of the latest steps since which one of these parameters has differed."""
        first = len(self._latest) - 1
        while first and any(
            self._differs(self._latest[first - 1], "parameter", name, group)
            for name, groups in parted.items()
            for group in groups
        ):
            first -= 1
        return self._latest[first]

    def _compare(self, steps: Sequence[Step], compared: Mapping[str, list[list[int]]]) -> None:
        apart: list[tuple[str, str, list[int]]] = []
        for name, groups in compared.items():
            for group in groups:
                kinds = [kind for kind in _KINDS if self._differs(steps, kind, name, group)]
                # Gradients of declared replicas may differ temporarily, for example while they are accumulated.
                if name not in self._declared or "parameter" in kinds:
                    apart += [(kind, name, group) for kind in kinds]
        if apart:
            self._are_replicas_parted = True
            self._findings.violations.append(self._parted(steps, apart))

    @staticmethod
    def _differs(steps: Sequence[Step], kind: str, name: str, group: Sequence[int]) -> bool:
        values = [value for place in group if (value := steps[place].values.get((kind, name))) is not None]
        # The digest of a partly written tensor covers only that part and cannot be compared with that of a whole one.
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
            REPLICAS, steps[mine].number, self._named(odd), self._named(others), f"{kind} {name}",
            tuple(dict.fromkeys(f"{of} {called}" for of, called, _ in apart)),
            None if entry is None else str(entry[0].op), None if entry is None else entry[1],
        )  # fmt: skip

    def _named(self, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._numbers[place] for place in places)

    def _first_difference(
        self, steps: Sequence[Step], kind: str, name: str, mine: int, other: int
    ) -> tuple[tuple[Entry, Frame | None] | None, bool | None]:
        """Return the first write of a step to a tensor that only one rank made, or whose result differs on another.

        Returns:
            The write, and True if the other rank lacks it, else None; None and None if there is no such write.
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
        divided = [(self._places(steps, one), one.is_shared) for one in steps[0].divided]
        groups = list(self._groups.values())
        if groups and not divided and len(groups) >= sum(kind == "parameter" for kind, _ in steps[0].values):
            # Ranks may take the same batch if they hold parts of a model in a way that the program did not declare.
            divided = [(groups[0][0], False)]
        for places, is_shared in divided:
            found = self._other_batch(steps, places) if is_shared else self._same_batch(steps, places)
            if found is None:
                continue
            place, compared = found
            self._is_batch_told = True
            stack = self._processes[place].names.stack(steps[place].batch_stack)
            self._findings.violations.append(
                Violation(
                    SHARED_BATCHES if is_shared else SPLIT_BATCHES, steps[place].number, self._named([place]),
                    self._named([compared]), "batch", site=stack[0] if stack else None,
                )
            )  # fmt: skip
            return

    def _places(self, steps: Sequence[Step], divided: Divided) -> list[int]:
        """Return the indices of the ranks that all declare that they hold parts of the same model."""
        return [
            place
            for place, step in enumerate(steps)
            if self._numbers[place] in divided.ranks and divided in step.divided
        ]

    def _same_batch(self, steps: Sequence[Step], places: Sequence[int]) -> tuple[int, int] | None:
        """Return a rank that has had the same batches as an earlier one for some steps, and the earlier one."""
        first_of: dict[tuple[bytes, ...], int] = {}
        for place in places:
            batches = steps[place].batches
            if not batches:
                continue
            same = first_of.setdefault(batches, place)
            if same == place:
                continue
            self._shared[same, place] += 1
            if self._shared[same, place] >= _LEAST_SHARED:
                return place, same
        return None

    def _other_batch(self, steps: Sequence[Step], places: Sequence[int]) -> tuple[int, int] | None:
        """Return a rank that computed with a different batch than the first one, and the first one.

        If only one of them loads batches and sends them, or each computes with a part, either the batches or the inputs
        of modules are the same.
        """
        for place in places[1:]:
            mine, other = steps[place], steps[places[0]]
            if not mine.batches or len(mine.batches) != len(other.batches) or len(mine.inputs) != len(other.inputs):
                continue
            self._findings.compared[SHARED_BATCHES] += 1
            if mine.batches != other.batches and mine.inputs and mine.inputs != other.inputs:
                return place, places[0]
        return None


def _odd_one(steps: Sequence[Step], kind: str, name: str, group: Sequence[int]) -> tuple[int, int, bool]:
    """Return a rank that differs, one to compare it with, and whether a majority agrees against it."""
    digests = {place: steps[place].values[kind, name].digest for place in group if (kind, name) in steps[place].values}
    (most, count), *_ = counted = Counter(digests.values()).most_common()
    mine = next(place for place in reversed(digests) if digests[place] != most)
    other = next(place for place, digest in digests.items() if digest == most)
    return mine, other, count > counted[1][1]


def _writes(process: ProcessTrace, value: Value, began: int) -> Iterator[tuple[Entry, Frame | None]]:
    """Yield the writes of a step to a tensor, last one first."""
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
    """Return the previous content of the memory that an op wrote."""
    semantics = entry.op.semantics
    if entry.carries:
        return entry.carries[min(output, len(entry.carries) - 1)]
    if OpSemantics.IN_PLACE in semantics and OpSemantics.COPIES_INTO not in semantics and output < len(entry.inputs):
        # The tensors that it changes come first among its arguments.
        return entry.inputs[output]
    return None


def _steps(process: ProcessTrace) -> Iterator[Step]:
    """Yield the end of each step of a rank, in order."""
    names = process.names
    values: dict[tuple[str, str], Value] = {}
    batches: list[bytes] = []
    inputs: list[bytes] = []
    replicated: list[Replicated] = []
    divided: list[Divided] = []
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
            elif role == Role.OP and ops[int(chunk.columns["op"][row])] == REPLICATED_OP:
                replicated += _replicated(process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row])))
            elif role == Role.OP and ops[int(chunk.columns["op"][row])] == DIVIDED_OP:
                divided += _divided(process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row])))
            elif role == Role.OP and ops[int(chunk.columns["op"][row])] == CALLED_OP:
                called = entry_of(process, chunk, row)
                if called.arguments.startswith("grad ") and called.inputs and called.inputs[0].digest is not None:
                    inputs.append(called.inputs[0].digest)
            elif role == Role.STATE and ops[int(chunk.columns["op"][row])] == STEP_OP:
                values.update(_state(process, chunk, row))
                number = int(chunk.columns["step"][row])
                yield Step(
                    number, dict(values), tuple(batches), stack, began, tuple(replicated), tuple(divided), tuple(inputs)
                )
                values = {name: value for name, value in values.items() if value.record < 0 and name[0] == "parameter"}
                batches, inputs, began = [], [], chunk.number(row) + 1


def _replicated(text: str | None) -> Iterator[Replicated]:
    """Yield the replicas that a record declares; nothing if it is damaged."""
    for ranks, names in _declared(text, "names"):
        if isinstance(names, list):
            yield Replicated(ranks, tuple(name for name in names if isinstance(name, str)))


def _divided(text: str | None) -> Iterator[Divided]:
    """Yield the parts of a model that a record declares; nothing if it is damaged."""
    for ranks, is_shared in _declared(text, "shared"):
        if isinstance(is_shared, bool):
            yield Divided(ranks, is_shared)


def _declared(text: str | None, what: str) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield the ranks that a record declares, and what it says about them; nothing if it is damaged."""
    try:
        said = json.loads(text or "")
        ranks, about = said["ranks"], said[what]
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    if isinstance(ranks, list):
        yield tuple(rank for rank in ranks if type(rank) is int), about


def _held(process: ProcessTrace, chunk: Chunk, row: int, op: str) -> Iterator[tuple[tuple[str, str], Value]]:
    """Yield a tensor that has its own record, as at level step."""
    kind = _HELD_KINDS.get(op)
    name = process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row]))
    entry = entry_of(process, chunk, row)
    if kind and name and entry.outputs and entry.outputs[0].digest != NO_DIGEST:
        yield (kind, name), Value(_form(entry.outputs[0].layout), entry.outputs[0].digest, -1)


def _state(process: ProcessTrace, chunk: Chunk, row: int) -> Iterator[tuple[tuple[str, str], Value]]:
    """Yield the held tensors by the records that wrote them, as at level op."""
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
