"""Adds to a comparison of stored traces how far apart the values are, where the traces hold values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from determinism.comparison.columns import Canonical, Group, producers
from determinism.comparison.divergence import MOST_ENTRIES, Divergence, Likeness, OutputDifference, likeness
from determinism.comparison.lockstep import Lockstep
from determinism.comparison.result import Comparison, Parting, ValuesApart, ValueStep
from determinism.comparison.tensors import difference
from determinism.trace.chunks import Array, Chunk
from determinism.trace.files import BYTES, StoredTensor
from determinism.trace.kept_values import Place, ValuesReader, sampled_places
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import END_OP, Layout, Table
from determinism.types import Phase, Role, Verdict

# How far apart two outputs are, judging by their kept elements.

_STORED = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16",
    "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "F32", "complex128": "F64",
}  # fmt: skip


class Sample(NamedTuple):
    """The elements that were kept of one output."""

    layout: Layout
    elements: bytes


def sampled_difference(first: Sample | None, second: Sample | None, most: int) -> OutputDifference | None:
    """Compare what two runs kept of an output, at most so many elements; None where that is impossible, as with different shapes."""
    if first is None or second is None:
        return None
    layout = first.layout
    if (layout.dtype, layout.shape) != (second.layout.dtype, second.layout.shape):
        return None
    places = sampled_places(layout.elements, most) if layout.elements > most else None
    shape = layout.shape if places is None else (len(places),)
    stored = [_stored(sample, shape) for sample in (first, second)]
    if stored[0] is None or stored[1] is None:
        return None
    found = difference(stored[0], stored[1], shape)
    if found is None:
        return None
    output = OutputDifference(layout.dtype, layout.shape, layout.device, layout.elements)
    output = replace(output, **found._asdict())
    if places is None:
        return output
    examples = tuple(replace(one, index=_index(places[one.index[0]], layout.shape)) for one in output.examples or ())
    return replace(output, elements_sampled=len(places), examples=examples or None, extent=None)


def _stored(sample: Sample, shape: tuple[int, ...]) -> StoredTensor | None:
    dtype = sample.layout.dtype
    kind = _STORED.get(dtype)
    if kind is None:
        # For types without a counterpart in the file format, the bytes are compared.
        width = len(sample.elements) // math.prod(shape) if math.prod(shape) else 0
        kind, shape = "U8", (*shape, width)
    elif dtype.startswith("complex"):
        shape = (*shape, 2)
    is_whole = math.prod(shape) * BYTES[kind] == len(sample.elements)
    return StoredTensor(kind, shape, sample.elements) if is_whole else None


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element, from its position in index order."""
    index = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        index.append(at)
    return tuple(reversed(index))


# The values that were kept of one process, as the comparison reaches them.


class ValueSide:
    """The kept values of one run: those of the current records, and those held from earlier ones."""

    def __init__(self, process: ProcessTrace) -> None:
        """Take the process."""
        self.names = process.names
        self._reader = ValuesReader(process.folder, int(process.description.get("values") or 0))
        self._held: dict[Place, Sample] = {}
        self._chunk: Chunk | None = None
        self._new: dict[Place, bytes] = {}

    def load(self, chunk: Chunk) -> None:
        """Take the values of the next records."""
        self._chunk = chunk
        self._new = self._reader.between(chunk.first, chunk.first + chunk.rows) if chunk.rows else {}

    def sample(self, place: Place) -> Sample | None:
        """Return what was kept of an output; None if nothing was, or if it is not available."""
        elements = self._new.get(place)
        if elements is None or self._chunk is None:
            return self._held.get(place)
        outputs = self._chunk.children["outputs"]
        row = place[0] - self._chunk.first
        if place[1] >= len(outputs.of(row)):
            # No such output was recorded: the file is damaged.
            return None
        layout = self.names.layout(int(outputs.columns["layout"][outputs.of(row)[place[1]]]))
        return None if layout is None else Sample(layout, elements)

    def hold(self, places: list[Place]) -> None:
        """Hold the samples of these places until the next call."""
        found = [(place, self.sample(place)) for place in places]
        self._held = {place: sample for place, sample in found if sample is not None}

    def read_by(self, row: int) -> list[Place]:
        """Return where the inputs of a current record come from; record -1 means outside."""
        assert self._chunk is not None
        inputs = self._chunk.children["inputs"]
        sources = producers(self._chunk)[inputs.part(row)].tolist()
        return list(zip(sources, inputs.columns["output"][inputs.part(row)].tolist(), strict=True))

    def text(self, table: Table, column: str, row: int) -> str:
        """Return a name of a current record."""
        assert self._chunk is not None
        return self.names.text(table, int(self._chunk.columns[column][row])) or ""


# Reads two processes in lockstep once more, with the values that were kept of them.

_PARAMETER = "determinism::parameter"
_ROUNDING = (Likeness.ROUNDING, None)


class _Gap(NamedTuple):
    """How far apart two tensors with the same name are."""

    relative: float
    ulp: int | None
    name: str


class ValueScan:
    """Finds where the kept values of one process of two runs part, and how the difference grows."""

    def __init__(self, first: ProcessTrace, second: ProcessTrace, divergence: Divergence, most: int) -> None:
        """Take both processes.

        Args:
            first: The process in the first run.
            second: The process in the other one.
            divergence: Everything before it is ignored.
            most: The most elements of a tensor that were kept.
        """
        self._processes = (first, second)
        self._sides = (ValueSide(first), ValueSide(second))
        self._divergence = divergence
        self._most = most
        self._first: Parting | None = None
        self._beyond: Parting | None = None
        self._alone = [0, 0]
        self._has_come = False
        """Whether the divergence was reached."""
        self._losses: dict[int, _Gap] = {}
        self._parameters: dict[int, _Gap] = {}

    def result(self) -> ValuesApart:
        """Read everything, and return what was found."""
        lockstep = Lockstep(*self._processes, Canonical(*self._processes))
        # The order in which equal work was done no longer matters here.
        lockstep.pairs_by_content = False
        for group in lockstep.groups():
            for side, chunk in zip(self._sides, (group.first, group.second), strict=True):
                side.load(chunk)
            self._add(group)
        note = "" if self._first is not None else "In the records that both runs have, none of the kept values differ."
        return ValuesApart(
            (self._most, self._most),
            note,
            self._first,
            self._beyond,
            tuple(self._steps()),
            (self._alone[0], self._alone[1]),
        )

    def _add(self, group: Group) -> None:
        first, second = group.pairing
        is_late = self._is_late(group)
        for run, (mine, other, chunk) in enumerate(((first, second, group.first), (second, first, group.second))):
            alone = mine[(mine >= 0) & (other < 0) & is_late]
            self._alone[run] += int((chunk.columns["role"][alone] != Role.STATE).sum())
        paired = group.pairing.are_pairs
        for at in np.flatnonzero(group.flags.outputs & paired & is_late).tolist():
            if self._first is not None and (self._beyond is not None or self._first.looks_like not in _ROUNDING):
                break
            self._look(group, int(first[at]), int(second[at]))
        roles = np.where(paired, group.first.columns["role"][first] if group.first.rows else -1, -1)
        for at in np.flatnonzero(np.isin(roles, (Role.LOSS, Role.STATE, Role.HELD))).tolist():
            self._measure(group, int(first[at]), int(second[at]), Role(int(roles[at])))

    def _is_late(self, group: Group) -> Array:
        """Which pairs are at or after the first divergence."""
        side = self._divergence.records_of
        rows = group.pairing[side]
        numbers = (group.first, group.second)[side].first + rows
        come = np.where(rows >= 0, numbers >= self._divergence.record, False)
        late = np.logical_or.accumulate(come) | self._has_come
        self._has_come |= bool(come.any())
        return np.asarray(late)

    def _look(self, group: Group, first: int, second: int) -> None:
        """Compare the outputs of a pair of records."""
        numbers = (group.first.first + first, group.second.first + second)
        outputs = []
        for position in range(len(group.first.children["outputs"].of(first))):
            found = self._difference((numbers[0], position), (numbers[1], position))
            if found is not None and found.elements_different:
                outputs.append(replace(found, position=position))
        if outputs:
            self._note(group, first, tuple(outputs))

    def _note(self, group: Group, row: int, outputs: tuple[OutputDifference, ...]) -> None:
        looks_like = likeness(outputs)
        if self._first is not None and looks_like in _ROUNDING:
            return
        side, columns = self._sides[0], group.first.columns
        stack = side.names.stack(int(columns["stack"][row]))
        parting = Parting(
            record=group.first.first + row,
            step=int(columns["step"][row]),
            phase=Phase(int(columns["phase"][row])).label,
            op=side.text(Table.OP, "op", row),
            module=side.names.text(Table.MODULE, int(columns["module"][row])),
            site=stack[0] if stack else None,
            outputs=outputs,
            looks_like=looks_like,
        )
        if self._first is None:
            self._first = parting
        else:
            self._beyond = parting

    def _measure(self, group: Group, first: int, second: int, role: Role) -> None:
        """Note how far apart the losses are, or the values held."""
        step = int(group.first.columns["step"][first])
        left, right = self._sides
        if role is Role.HELD:
            if left.text(Table.OP, "op", first) == _PARAMETER:
                name = left.text(Table.ARGUMENTS, "arguments", first)
                self._compare(
                    self._parameters, step, (group.first.first + first, 0), (group.second.first + second, 0), name
                )
            return
        read = (left.read_by(first), right.read_by(second))
        if role is Role.LOSS:
            if read[0] and read[1] and step not in self._losses:
                self._compare(self._losses, step, read[0][0], read[1][0], "loss")
            return
        if left.text(Table.OP, "op", first) == END_OP:
            # Not a step of its own: it holds what the last step left.
            return
        held = [
            dict(zip(_names(side.text(Table.ARGUMENTS, "arguments", row)), places, strict=False))
            for side, row, places in zip(self._sides, (first, second), read, strict=True)
        ]
        for (sort, name), place in held[0].items():
            if sort == "parameter" and (sort, name) in held[1]:
                self._compare(self._parameters, step, place, held[1][sort, name], name)
        for side, places in zip(self._sides, read, strict=True):
            side.hold(places)

    def _compare(self, gaps: dict[int, _Gap], step: int, first: Place, second: Place, name: str) -> None:
        found = self._difference(first, second)
        if found is None:
            return
        relative = 0.0 if not found.elements_different else found.max_relative
        gap = _Gap(math.inf if relative is None else relative, found.max_ulp if found.elements_different else 0, name)
        if step not in gaps or gap.relative > gaps[step].relative:
            gaps[step] = gap

    def _difference(self, first: Place, second: Place) -> OutputDifference | None:
        return sampled_difference(self._sides[0].sample(first), self._sides[1].sample(second), self._most)

    def _steps(self) -> Iterator[ValueStep]:
        steps = sorted(self._losses.keys() | self._parameters.keys())
        width = math.ceil(len(steps) / MOST_ENTRIES) or 1
        for start in range(0, len(steps), width):
            step = max(steps[start : start + width], key=self._width_at)
            loss, parameters = self._losses.get(step), self._parameters.get(step)
            yield ValueStep(
                step,
                loss.ulp if loss else None,
                _finite(loss),
                parameters.ulp if parameters else None,
                _finite(parameters),
                parameters.name if parameters else None,
            )

    def _width_at(self, step: int) -> float:
        gaps = (self._losses.get(step), self._parameters.get(step))
        return max((gap.relative for gap in gaps if gap is not None), default=0.0)


def _finite(gap: _Gap | None) -> float | None:
    return gap.relative if gap is not None and math.isfinite(gap.relative) else None


def _names(text: str) -> list[tuple[str, str]]:
    """Return the sort and the name of everything that is held at the end of a step."""
    return [(str(sort), str(name)) for sort, name in json.loads(text)] if text.startswith("[[") else []


_ONLY_TORCH = "How far apart the values are is unknown: values are kept only for PyTorch tensors."
_AGAIN = "Record both with `determinism record --values 64`"


def with_values(comparison: Comparison, traces: Sequence[Trace]) -> Comparison:
    """Return a comparison extended by how far apart the values of its runs are.

    Raises:
        TraceError: A trace cannot be read.
    """
    first = comparison.first_divergence
    if comparison.verdict is not Verdict.DIFFERENT or first is None:
        return comparison
    number = comparison.environment_run
    found = [
        next((process for process in trace.processes if process.key == first.process), None)
        for trace in (traces[0], traces[number - 1])
    ]
    if first.stream is not None or found[0] is None or found[1] is None:
        return comparison
    one, other = (_kept(process) for process in found if process is not None)
    if one is None or one != other:
        frameworks = {process.description.get("framework", "torch") for process in found if process is not None}
        note = _ONLY_TORCH if "torch" not in frameworks else _nothing_to_compare(one, other, number)
        return replace(comparison, values=ValuesApart((one, other), note))
    values = ValueScan(found[0], found[1], first, one).result()
    if values.first is not None and (first.records_of, first.record) == (0, values.first.record):
        first = _with_outputs(first, values.first.outputs)
    return replace(comparison, values=values, first_divergence=first)


def _kept(process: ProcessTrace) -> int | None:
    """Return the most elements of a tensor that were kept; None where none were."""
    return int(process.description.get("values") or 0) or None


def _nothing_to_compare(one: int | None, other: int | None, number: int) -> str:
    if one is None and other is None:
        return f"How far apart the values are is unknown: the traces hold digests only. {_AGAIN}, and compare these."
    if one is None or other is None:
        which = 1 if one is None else number
        return f"How far apart the values are is unknown: the trace of run {which} holds digests only. {_AGAIN}."
    return (
        f"How far apart the values are is unknown: {one} elements of each tensor were kept in run 1, and {other} in run "
        f"{number}. {_AGAIN}."
    )


def _with_outputs(first: Divergence, compared: Sequence[OutputDifference]) -> Divergence:
    seen = {output.position: output for output in compared}
    outputs = tuple(seen.get(output.position, output) for output in first.outputs)
    return replace(first, outputs=outputs)
