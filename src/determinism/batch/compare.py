"""Compares the rows of batches and names the op at which a row first depends on its batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

from determinism.comparison.divergence import Divergence, OutputDifference
from determinism.comparison.recorded import recorded_by, summary_of
from determinism.comparison.records import entry_of
from determinism.comparison.result import (
    BatchFindings,
    BatchKind,
    Comparison,
    Recorded,
    RowDifference,
    TrainingModule,
    Trouble,
    size_pair,
)
from determinism.digest import digest_many, digest_text
from determinism.op_semantics import OpSemantics
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.row_calls import SeenCall, SeenTensor, read_row_calls
from determinism.trace.schema import NONE, Frame, Table
from determinism.types import Kind, Stream, Verdict

# The calls of runs with batches of different sizes, grouped by the places in the program that made them.

SHARED = -1
"""In place of a dimension: a tensor that is the same for all batches, such as a weight."""
UNKNOWN = -2
"""In place of a dimension: a tensor whose shape does not scale with the batch along one dimension."""
_MOST_PAIRS = 2000


@dataclass(frozen=True)
class PlacedCall:
    """One call, with the facts from its record."""

    run: int
    """The position of its run."""
    index: int
    """How many calls its run had made before it."""
    call: SeenCall
    process: ProcessTrace | None
    """None for a call that is in no trace."""
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
    semantics: OpSemantics = OpSemantics.NONE
    """What the op does."""

    @property
    def runs(self) -> set[int]:
        """The runs that reached this place."""
        return {call.run for call in self.calls}

    @property
    def moves_rows(self) -> bool:
        """Whether it may move values from one row to another; if so, equal rows in need not mean equal rows out."""
        return OpSemantics.MOVES_ROWS in self.semantics


def places_of(traces: Sequence[Trace]) -> list[Place]:
    """Every place, in the order in which the first run that has it reached it.

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
    """Split the calls of one line by the shapes of their tensors.

    Two calls belong together if their shapes are equal except for dimensions that scale with the batch.
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
        replace(place, calls=sorted((call for one in group for call in signatures[one]), key=_order))
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
        semantics = OpSemantics.NONE if is_module else names.op(cells["op"]).semantics
        place = places.setdefault(key, Place(call.name, is_module, semantics=semantics))
        place.calls.append(PlacedCall(run, index, call, process, module, arguments, stack, step))


def _columns(process: ProcessTrace) -> dict[str, list[int]]:
    """The columns that only the records have."""
    found: dict[str, list[int]] = {name: [] for name in ("op", "stack", "module", "arguments", "step")}
    for chunk in process.chunks():
        for name, cells in found.items():
            cells += chunk.columns[name].tolist()
    return found


@dataclass(frozen=True)
class Axes:
    """The dimension of the rows in each input and output of a place."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def has_rows_in(self) -> bool:
        """Whether any input has rows."""
        return any(axis >= 0 for axis in self.inputs)

    @property
    def is_by_row(self) -> bool:
        """Whether inputs and outputs have rows, and no input is unknown."""
        return self.has_rows_in and UNKNOWN not in self.inputs and any(axis >= 0 for axis in self.outputs)


def axes_of(place: Place) -> Axes:
    """Find the dimensions of the rows from the shapes in calls with batches of different sizes."""
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
    """The digests of the rows of those tensors that have rows; None if the rows of one were not digested.

    Args:
        tensors: The inputs or the outputs of a call.
        axes: The dimensions of their rows.
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


# Pairs the rows of one place by their inputs, and checks whether their outputs are equal.


@dataclass(frozen=True)
class Conflict:
    """Equal rows had different results."""

    earlier: PlacedCall
    later: PlacedCall
    output: int
    """The first output that differs."""


@dataclass
class Matches:
    """The rows of one place."""

    place: Place
    axes: Axes
    rows: dict[int, int] = field(default_factory=dict)
    """How many distinct rows each run had."""
    matched: int = 0
    """How many distinct rows occurred in two or more runs."""
    conflicts: list[Conflict] = field(default_factory=list)
    """The first conflict of each row that had different results."""


def match(place: Place, axes: Axes, *, with_state: bool = True, without_padding: bool = False) -> Matches:
    """Compare the rows of a place.

    Args:
        place: A place whose inputs and outputs have rows.
        axes: The dimensions of the rows.
        with_state: Rows count as equal only if the parameters of the module were equal, too.
        without_padding: Rows that differ in the zeros at their ends count as equal.
    """
    found = Matches(place, axes)
    counts_arguments = _arguments_are_the_same(place)
    first: dict[bytes, tuple[PlacedCall, tuple[bytes, ...]]] = {}
    runs: dict[bytes, set[int]] = {}
    conflicting: set[bytes] = set()
    for placed in place.calls:
        context = _context(placed, axes, counts_arguments, with_state, without_padding)
        for key, made in _rows(placed, axes, context, without_padding):
            known = first.setdefault(key, (placed, made))
            runs.setdefault(key, set()).add(placed.run)
            if known[1] == made or key in conflicting:
                continue
            if known[0].run == placed.run and not counts_arguments:
                # An argument that was not compared may have been different.
                continue
            conflicting.add(key)
            output = next(at for at, (a, b) in enumerate(zip(known[1], made, strict=True)) if a != b)
            found.conflicts.append(Conflict(known[0], placed, output))
    found.matched = sum(len(one) > 1 for one in runs.values())
    found.rows = {run: sum(run in one for one in runs.values()) for run in sorted(place.runs)}
    return found


def _arguments_are_the_same(place: Place) -> bool:
    """Whether the plain arguments of the calls do not depend on the size of the batch."""
    by_run: dict[int, set[str]] = {}
    for placed in place.calls:
        by_run.setdefault(placed.run, set()).add(placed.arguments)
    texts = list(by_run.values())
    return all(one == texts[0] for one in texts)


def _context(placed: PlacedCall, axes: Axes, arguments: bool, with_state: bool, without_padding: bool) -> bytes:
    """A digest of everything that the rows of a call share."""
    call = placed.call
    parts = [digest_text(placed.arguments if arguments else "")]
    if with_state:
        parts.append(digest_text(str(call.facts.get("state", ""))))
    for tensor, axis in zip(call.inputs, axes.inputs, strict=True):
        if axis == SHARED and not (without_padding and tensor.unpadded):
            parts.append(tensor.whole)
    return digest_many(parts)


def _rows(
    placed: PlacedCall, axes: Axes, context: bytes, without_padding: bool
) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
    """Yield the inputs and the outputs of a call, row by row."""
    call = placed.call
    if without_padding:
        given: list[list[bytes]] | None = [one.without_padding() for one in call.inputs if one.unpadded]
    else:
        given = rows_along(call.inputs, axes.inputs, call.batch)
    made = rows_along(call.outputs, axes.outputs, call.batch)
    if not given or not made:
        return
    count = min(len(rows) for rows in (*given, *made))
    if any(len(rows) % count for rows in (*given, *made)):
        return
    given, made = ([_folded(rows, count) for rows in group] for group in (given, made))
    for row in range(count):
        yield context + b"".join(rows[row] for rows in given), tuple(rows[row] for rows in made)


def _folded(rows: list[bytes], count: int) -> list[bytes]:
    """The rows combined into `count` rows, each of which represents several."""
    each = len(rows) // count
    return rows if each == 1 else [digest_many(rows[at : at + each]) for at in range(0, len(rows), each)]


Origin = tuple[Divergence, RowDifference]

_KINDS = {BatchKind.OP: Kind.OP, BatchKind.RNG: Kind.RNG, BatchKind.MIXING: Kind.DATA, BatchKind.PADDING: Kind.DATA}
"""The corresponding kinds in other comparisons: other rows, and padding, are data from outside the op."""


@dataclass
class OriginSearch:
    """Looks for the first op at which rows depend on their batch."""

    places: Sequence[Place]
    axes: Mapping[int, Axes]
    """The dimensions of rows, by the position of a place."""
    ops: Sequence[Matches]
    """The ops that take and make rows."""
    sizes: Sequence[int]
    """The size of the batches of each run."""

    def origin(self, ops: Sequence[Matches], models: Sequence[Matches], padded: Sequence[Matches]) -> Origin | None:
        """The first op whose results for equal rows differ, or the next best explanation; None if there is none.

        Args:
            ops: The ops in which equal rows had different results.
            models: The models in which equal rows had different results.
            padded: The models in which rows that differ only in their padding had different results.
        """
        if ops:
            first = min(ops, key=lambda one: _order(_first(one.conflicts).later))
            return self._divergence(first, self._kind_of(first))
        if models:
            found = self._mixing(models[0])
            if found is not None:
                return found
            if self.changed_state(models):
                return None
            return self._divergence(models[0], None)
        return self._divergence(padded[0], BatchKind.PADDING) if padded else None

    @staticmethod
    def changed_state(models: Sequence[Matches]) -> list[str]:
        """Names of the buffers that calls of these models changed."""
        calls = (placed.call for one in models for placed in one.place.calls)
        return sorted({name for call in calls for name in call.facts["changed"]})

    def _kind_of(self, found: Matches) -> BatchKind:
        facts = found.conflicts[0].later.call.facts
        if facts["draws"]:
            return BatchKind.RNG
        if any(conflict.later.call.facts.get("mixes") for conflict in found.conflicts):
            # Seen when the call was repeated with different rows next to the first one.
            return BatchKind.MIXING
        call, dimension = found.conflicts[0].later.call, facts.get("dim")
        ranks = [len(tensor.shape) for tensor, axis in zip(call.inputs, found.axes.inputs, strict=True) if axis >= 0]
        along = dimension is not None and any(
            dimension % max(rank, 1) == axis
            for rank, axis in zip(ranks, (axis for axis in found.axes.inputs if axis >= 0), strict=True)
        )
        # A softmax over the rows, for instance.
        takes_all = along or (OpSemantics.TAKES_STATISTICS in found.place.semantics and facts.get("trains"))
        return BatchKind.MIXING if takes_all else BatchKind.OP

    def _mixing(self, model: Matches) -> Origin | None:
        """The first op within a model that combines rows, or draws random numbers for them."""
        run = model.conflicts[0].later.run
        # If the function calls no module, all ops are its own.
        within = any(place.is_module and place.calls[0].process is not None for place in self.places)
        candidates: list[tuple[int, Origin]] = []
        for found in self.ops:
            if found.conflicts and found.place.moves_rows:
                index = min(conflict.later.index for conflict in found.conflicts)
                candidates.append((index, self._divergence(found, BatchKind.MIXING)))
        for position, axes in self.axes.items():
            place = self.places[position]
            placed = next((one for one in place.calls if one.run == run), None)
            if placed is None or place.is_module or (within and placed.module is None):
                continue
            if placed.call.facts["draws"]:
                candidates.append((placed.index, self._unpaired(placed, BatchKind.RNG)))
            elif axes.has_rows_in and self._takes_rows_together(axes, placed):
                candidates.append((placed.index, self._unpaired(placed, BatchKind.MIXING)))
        return min(candidates, key=lambda one: one[0])[1] if candidates else None

    def _takes_rows_together(self, axes: Axes, placed: PlacedCall) -> bool:
        if UNKNOWN in axes.outputs:
            # Such as a row of similarities for each row.
            return True
        return not axes.is_by_row and self._is_read_by_rows(placed)

    def _is_read_by_rows(self, maker: PlacedCall) -> bool:
        """Whether an op that works on rows reads what an op made from a whole batch, directly or through other ops."""
        by_row = {id(placed): found.axes for found in self.ops for placed in found.place.calls}
        later = (placed for place in self.places if not place.is_module for placed in place.calls)
        made = {one.whole for one in maker.call.outputs}
        for placed in sorted(later, key=lambda one: one.index):
            if placed.run != maker.run or placed.index <= maker.index:
                continue
            axes = by_row.get(id(placed))
            if axes is None:
                if any(tensor.whole in made for tensor in placed.call.inputs):
                    made |= {one.whole for one in placed.call.outputs}
            elif any(
                axis == SHARED and tensor.whole in made
                for tensor, axis in zip(placed.call.inputs, axes.inputs, strict=True)
            ):
                return True
        return False

    def _divergence(self, found: Matches, kind: BatchKind | None) -> Origin:
        conflict = _first(found.conflicts)
        later = conflict.later
        axes = [at for at, axis in enumerate(found.axes.outputs) if axis >= 0]
        sizes = (self.sizes[conflict.earlier.run], self.sizes[later.run])
        counts = len(found.conflicts), found.matched
        return _origin(later, kind, sizes, counts, axes[conflict.output])

    def _unpaired(self, placed: PlacedCall, kind: BatchKind) -> Origin:
        """An op whose rows cannot be compared, since its inputs or its outputs have none."""
        other = self.sizes[0 if placed.run else min(1, len(self.sizes) - 1)]
        return _origin(placed, kind, (other, self.sizes[placed.run]), (None, None), 0)


def _origin(
    placed: PlacedCall,
    kind: BatchKind | None,
    sizes: tuple[int, int],
    counts: tuple[int | None, int | None],
    output: int,
) -> Origin:
    call = placed.call
    is_training = bool(call.facts["training"])
    difference = RowDifference(kind, sizes, *counts, is_training)
    divergence = Divergence(
        kind=None if kind is None else _KINDS[kind],
        process="main" if placed.process is None else placed.process.key,
        record=call.record,
        records_of=placed.run,
        step=placed.step,
        phase=str(call.facts["phase"]),
        op=f"module::{call.name}" if call.record == NONE else call.name,
        module=placed.module,
        site=placed.stack[0] if placed.stack else None,
        forward_site=None,
        stack=placed.stack,
        inputs_equal=kind is BatchKind.OP or None,
        outputs=_output(placed, output),
        detail=_DETAILS[kind].format(size_pair(sizes)),
    )
    return divergence, difference


def _output(placed: PlacedCall, position: int) -> tuple[OutputDifference, ...]:
    """The output that differs, if a record describes it."""
    if placed.call.record == NONE or placed.process is None:
        return ()
    shape = placed.call.outputs[position].shape if position < len(placed.call.outputs) else None
    record = entry_of(placed.process, *placed.process.record(placed.call.record))
    layout = next((one.layout for one in record.outputs if one.layout is not None and one.layout.shape == shape), None)
    if layout is None:
        return ()
    return (OutputDifference(layout.dtype, layout.shape, layout.device, layout.elements),)


_DETAILS = {
    BatchKind.OP: "Equal rows, with equal weights and arguments, had different results in batches of {}.",
    BatchKind.MIXING: "The op combines the rows of a batch, so the result of a row depends on the others (batches of {}).",
    BatchKind.RNG: "The op draws random numbers, so a row gets different ones in a different batch (batches of {}).",
    BatchKind.PADDING: (
        "Batches are padded to their longest row, so the same row ended with different numbers of zeros, and the "
        "model gave a different result (batches of {})."
    ),
    None: "The whole model gave equal rows different results (batches of {}); no recorded op explains it.",
}


def _first(conflicts: Sequence[Conflict]) -> Conflict:
    return min(conflicts, key=lambda one: _order(one.later))


# Decides whether a row's result depends on its batch, from one run for each batch size.


@dataclass
class Compared:
    """The findings about all places."""

    places: list[Place]
    ops: list[Matches] = field(default_factory=list)
    """For the ops that take and make rows, in program order."""
    models: list[Matches] = field(default_factory=list)
    """For the outermost modules that take and make rows."""
    models_without_padding: list[Matches] = field(default_factory=list)
    """The same, with padding removed from the rows."""
    axes: dict[int, Axes] = field(default_factory=dict)
    """By the position of the place."""


def compare_batches(traces: Sequence[Trace], sizes: Sequence[int], further: Sequence[Place] = ()) -> Comparison:
    """Compare the rows of runs with batches of different sizes.

    Args:
        traces: One run for each size; empty if ops are not recorded.
        sizes: How many samples a batch had in each.
        further: Places that are in no trace, such as the calls of a checked function.

    Raises:
        TraceError: A trace is damaged.
    """
    compared = _compare([*places_of(traces), *further])
    source = _source(compared)
    rows = BatchFindings(
        tuple(sorted(set(sizes))),
        rows={} if source is None else {sizes[run]: count for run, count in source.rows.items()},
        rows_matched=0 if source is None else source.matched,
        places=sum(one.matched > 0 for one in (*compared.ops, *compared.models)),
        training=tuple(_training(compared.places)),
        draws=any(placed.call.facts.get("drawn") for place in compared.places for placed in place.calls),
    )
    runs = tuple(summary_of(trace) for trace in traces)
    recorded = recorded_by(traces) if traces else Recorded()
    return _concluded(Comparison(Verdict.SAME, runs, recorded, batch=rows), rows, compared, sizes)


def _compare(places: list[Place]) -> Compared:
    found = Compared(places)
    for position, place in enumerate(places):
        axes = found.axes[position] = axes_of(place)
        if axes.is_by_row:
            (found.models if place.is_module else found.ops).append(match(place, axes))
    for place in _padded(places):
        axes = axes_of(place)
        if any(axis >= 0 for axis in axes.outputs):
            found.models_without_padding.append(match(place, axes, without_padding=True))
    return found


def _padded(places: Sequence[Place]) -> list[Place]:
    """The models whose rows may have been padded, each with calls of all lengths."""
    whole: dict[tuple[object, ...], Place] = {}
    for place in places:
        call = place.calls[0].call
        if place.is_module and any(one.unpadded for one in call.inputs):
            kinds = tuple(tuple(len(one.shape) for one in group) for group in (call.inputs, call.outputs))
            whole.setdefault((place.name, kinds), Place(place.name, True)).calls.extend(place.calls)
    for place in whole.values():
        place.calls.sort(key=_order)
    return list(whole.values())


def _training(places: Sequence[Place]) -> list[TrainingModule]:
    names = {
        (path, name): TrainingModule(path, name)
        for place in places
        if place.is_module
        for placed in place.calls
        for path, name in placed.call.facts["sensitive"]
    }
    return list(names.values())


def _source(compared: Compared) -> Matches | None:
    """The place at which rows are counted: the model that compares most of them, else such an op."""
    for group in (compared.models, compared.models_without_padding, compared.ops):
        best = max(group, key=lambda one: one.matched, default=None)
        if best is not None and best.matched:
            return best
    return next((one for group in (compared.models, compared.ops) for one in group), None)


def _concluded(comparison: Comparison, rows: BatchFindings, compared: Compared, sizes: Sequence[int]) -> Comparison:
    """The comparison with its verdict, and with the place where equal rows first had different results."""
    ops = [one for one in compared.ops if one.conflicts and not one.place.moves_rows]
    models = [one for one in compared.models if one.conflicts]
    padded = [one for one in compared.models_without_padding if one.conflicts]
    if any(one.matched for one in (*compared.models, *compared.models_without_padding)):
        rows = replace(rows, results_differ=bool(models or padded))
    trouble = []
    if ops or models or padded:
        search = OriginSearch(compared.places, compared.axes, compared.ops, sizes)
        origin = search.origin(ops, models, padded)
        if origin is not None:
            divergence, difference = origin
            return replace(
                comparison,
                verdict=Verdict.DIFFERENT,
                first_divergence=divergence,
                absorbed=rows.results_differ is False,
                batch=replace(rows, difference=difference),
            )
        trouble.append(Trouble("batch-state-changes", _STATE.format(", ".join(search.changed_state(models)))))
    if any(spot.identifier == "rows-cut" for spot in comparison.recorded.blind_spots):
        trouble.append(Trouble("batch-rows-cut", _CUT))
    if not trouble and not _is_covered(compared):
        trouble.append(_unmatched(rows, compared))
    verdict = Verdict.INCONCLUSIVE if trouble else comparison.verdict
    return replace(comparison, verdict=verdict, trouble=tuple(trouble), batch=rows)


def _is_covered(compared: Compared) -> bool:
    """Whether enough was compared to say that rows do not depend on their batch."""
    if any(one.matched for one in (*compared.models, *compared.models_without_padding)):
        return True
    # No model returns its results row by row, so each op on the way must have had equal rows.
    ops = [one for one in compared.ops if not one.place.moves_rows]
    return bool(ops) and all(one.matched for one in ops)


def _unmatched(rows: BatchFindings, compared: Compared) -> Trouble:
    """Why no rows could be compared."""
    batches = {placed.call.batch for place in compared.places for placed in place.calls}
    if not compared.models and not compared.ops:
        if not batches:
            return Trouble("batch-without-rows", _NO_CALLS.format(_listed(rows.sizes)))
        return Trouble("batch-without-rows", _NO_ROWS.format(_listed(rows.sizes), _listed(sorted(batches))))
    stateless = [match(one.place, one.axes, with_state=False) for one in compared.models]
    if any(one.matched for one in stateless) and not any(one.matched for one in compared.models):
        return Trouble("batch-weights-differ", _WEIGHTS)
    if any(one.matched for one in (*compared.models, *compared.ops)):
        first = next(one for one in compared.ops if not one.matched and not one.place.moves_rows)
        return Trouble("batch-rows-unmatched", _LOST.format(first.place.name))
    return Trouble("batch-rows-unmatched", _UNMATCHED)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


_STATE = (
    "The results of equal rows differ, but the model changed its own buffers while it ran ({}), and no op was found "
    "that gave equal rows different results. So it is not known whether the batch or earlier calls made the "
    "difference. Start each run from the same state, with one call for each batch."
)
_CUT = "The rows took too much memory, so the later part of a run was not compared. Give the program less data, or a smaller model."
_NO_ROWS = (
    "No call was found that takes and returns as many rows as the batch has: the sizes were {}, and the calls had "
    "batches of {}. Check that {{batch}} in the command is the number of samples in a batch, that PyTorch or JAX "
    "does the computing, and that the program computes more than a mean."
)
_NO_CALLS = (
    "No call of a PyTorch or JAX module or op was seen whose rows could be compared; the sizes were {}. In whole "
    "programs, only rows of PyTorch and JAX are compared. For TensorFlow or NumPy, pass the function to "
    "determinism.check_batch_invariance."
)
_WEIGHTS = (
    "The inputs were equal, but the parameters of the model differed between the runs, so results cannot be compared. Seed the program, load "
    "the parameters, or put `determinism run --seed 1 --` before the command."
)
_UNMATCHED = (
    "No row with equal content was found in batches of two sizes, so nothing was compared. Use the same samples in "
    "each run: seed what draws them, do not shuffle or augment, and pad to a fixed length."
)
_LOST = (
    "No model was called that returns one result per row, and on the way to the result {} had no rows in common "
    "between the sizes. Wrap the code under test in a torch.nn.Module, or in JAX in one function under jax.jit; its "
    "inputs and outputs are then compared."
)
