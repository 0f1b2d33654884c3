"""The calls of runs with batches of different sizes, by the places of the program that made them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from determinism.trace.names import Frame
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.row_calls import SeenCall, SeenTensor, read_row_calls
from determinism.trace.schema import NONE, Table
from determinism.types import Stream

SHARED = -1
"""Instead of a dimension: a tensor that is the same for all batches, a weight for instance."""
UNKNOWN = -2
"""A tensor whose shape does not follow the size of the batch along one dimension."""
_MOST_PAIRS = 2000


@dataclass(frozen=True)
class PlacedCall:
    """One call, with what its record tells."""

    run: int
    """Which run, by position."""
    index: int
    """How many calls its run had made before."""
    call: SeenCall
    process: ProcessTrace | None
    """None for a call that was seen beside a trace."""
    module: str | None
    arguments: str
    stack: tuple[Frame, ...]
    step: int


@dataclass
class Place:
    """All calls of one op, or of one outermost module, from one line."""

    name: str
    is_module: bool
    calls: list[PlacedCall] = field(default_factory=list)

    @property
    def runs(self) -> set[int]:
        """The runs that came here."""
        return {call.run for call in self.calls}


def places_of(traces: Sequence[Trace]) -> list[Place]:
    """Every place, in the order in which the first run that has it came to it.

    Args:
        traces: One run for each size.

    Raises:
        TraceError: A trace is damaged.
    """
    places: dict[tuple[object, ...], Place] = {}
    for run, trace in enumerate(traces):
        for process in trace.processes:
            if process.description.get("stream", Stream.PROCESS) == Stream.PROCESS:
                _add(places, run, process)
    return [part for place in places.values() for part in by_shapes(place)]


Signature = tuple[int, tuple[tuple[int, ...], ...]]


def by_shapes(place: Place) -> list[Place]:
    """Tell apart what one line calls with tensors of different shapes.

    Two calls belong together if the shapes of the one are those of the other, but for dimensions that follow the size of the batch.
    """
    signatures: dict[Signature, list[PlacedCall]] = {}
    for placed in place.calls:
        signatures.setdefault(_signature(placed.call), []).append(placed)
    groups: list[list[Signature]] = []
    for signature in signatures:
        near = [group for group in groups if any(_go_together(signature, other) for other in group)]
        groups = [group for group in groups if group not in near] + [
            [signature, *(one for group in near for one in group)]
        ]
    return [
        Place(place.name, place.is_module, sorted((call for one in group for call in signatures[one]), key=_order))
        for group in groups
    ]


def _order(placed: PlacedCall) -> tuple[int, int]:
    return placed.run, placed.index


def _signature(call: SeenCall) -> Signature:
    return call.batch, tuple(tensor.shape for tensor in (*call.inputs, *call.outputs))


def _go_together(mine: Signature, other: Signature) -> bool:
    (batch, shapes), (other_batch, other_shapes) = mine, other
    if batch == other_batch:
        return False
    sizes = (
        (a, b) for shape, partner in zip(shapes, other_shapes, strict=True) for a, b in zip(shape, partner, strict=True)
    )
    return all(a == b or a * other_batch == b * batch for a, b in sizes)


def _add(places: dict[tuple[object, ...], Place], run: int, process: ProcessTrace) -> None:
    names = process.names
    columns = _columns(process)
    step = 0
    for index, call in enumerate(read_row_calls(process.folder)):
        is_module = call.record == NONE
        if not is_module and call.record >= len(columns["step"]):
            # The record itself was lost when the process was killed.
            continue
        cells = {} if is_module else {name: cells[call.record] for name, cells in columns.items()}
        stack = names.stack(call.stack if is_module else cells["stack"])
        module = "" if is_module else names.text(Table.MODULE, cells["module"])
        arguments = "" if is_module else names.text(Table.ARGUMENTS, cells["arguments"]) or ""
        step = cells.get("step", step)
        kinds = tuple(tuple(len(one.shape) for one in group) for group in (call.inputs, call.outputs))
        key = (call.name, is_module, module, stack[0][:3] if stack else None, kinds)
        place = places.setdefault(key, Place(call.name, is_module))
        place.calls.append(PlacedCall(run, index, call, process, module, arguments, stack, step))


def _columns(process: ProcessTrace) -> dict[str, list[int]]:
    """What the records tell that is kept with them only."""
    found: dict[str, list[int]] = {name: [] for name in ("stack", "module", "arguments", "step")}
    for chunk in process.chunks():
        for name, cells in found.items():
            cells += chunk.columns[name].tolist()
    return found


@dataclass(frozen=True)
class Axes:
    """Along which dimension the rows of each input and output of a place lie."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def has_rows_in(self) -> bool:
        """Whether something goes in row by row."""
        return any(axis >= 0 for axis in self.inputs)

    @property
    def is_by_row(self) -> bool:
        """Whether rows go in and rows come out, and of all inputs it is known what they are."""
        return self.has_rows_in and UNKNOWN not in self.inputs and any(axis >= 0 for axis in self.outputs)


def axes_of(place: Place) -> Axes:
    """See from the shapes that calls with batches of different sizes have where the rows lie."""
    calls = [placed.call for placed in place.calls]
    first = calls[0]
    inputs = (_axis((call.batch, call.inputs[at].shape) for call in calls) for at in range(len(first.inputs)))
    outputs = (_axis((call.batch, call.outputs[at].shape) for call in calls) for at in range(len(first.outputs)))
    return Axes(tuple(inputs), tuple(outputs))


def _axis(found: Iterable[tuple[int, tuple[int, ...]]]) -> int:
    is_shared = False
    distinct = list(dict.fromkeys(found))
    for (batch, shape), (other_batch, other_shape) in islice(combinations(distinct, 2), _MOST_PAIRS):
        if batch == other_batch:
            continue
        changed = [at for at, sizes in enumerate(zip(shape, other_shape, strict=True)) if sizes[0] != sizes[1]]
        if not changed:
            is_shared = True
        elif len(changed) == 1 and shape[changed[0]] * other_batch == other_shape[changed[0]] * batch:
            return changed[0]
    return SHARED if is_shared else UNKNOWN


def rows_along(tensors: Sequence[SeenTensor], axes: Sequence[int], batch: int) -> list[list[bytes]] | None:
    """The digests of the rows of those tensors that have rows; None if they do not go with each other.

    Args:
        tensors: The inputs or the outputs of a call.
        axes: Where their rows lie.
        batch: How many samples the batch had.
    """
    found = []
    for tensor, axis in zip(tensors, axes, strict=True):
        if axis >= 0:
            rows = tensor.along(axis, batch)
            if rows is None:
                return None
            found.append(rows)
    return found
