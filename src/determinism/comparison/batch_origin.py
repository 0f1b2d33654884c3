"""Finds the op at which a row first depends on its batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from determinism.comparison.batch_result import BatchKind, RowDifference
from determinism.comparison.divergence import Divergence, OutputDifference
from determinism.comparison.origins import entry
from determinism.comparison.row_matches import Conflict, Matches
from determinism.comparison.row_ops import moves_rows, takes_statistics
from determinism.comparison.row_places import SHARED, UNKNOWN, Axes, Place, PlacedCall
from determinism.trace.schema import NONE
from determinism.types import Kind

Origin = tuple[Divergence, RowDifference]

_KINDS = {BatchKind.OP: Kind.OP, BatchKind.RNG: Kind.RNG, BatchKind.MIXING: Kind.DATA, BatchKind.PADDING: Kind.DATA}
"""What the kinds are among those of all comparisons: other rows, and padding, come from outside."""


class OriginSearch:
    """Looks for the first op, from what is known of all places."""

    def __init__(
        self, places: Sequence[Place], axes: Mapping[int, Axes], ops: Sequence[Matches], sizes: Sequence[int]
    ) -> None:
        """Take what was found.

        Args:
            places: All of them.
            axes: Where rows lie, by the position of a place.
            ops: The ops that take and make rows.
            sizes: The size of the batches of each run.
        """
        self._places = places
        self._axes = axes
        self._ops = ops
        self._sizes = sizes

    def origin(self, ops: Sequence[Matches], models: Sequence[Matches], padded: Sequence[Matches]) -> Origin | None:
        """The first op that made something else of an equal row, or what else can be told; None if nothing can.

        Args:
            ops: Those in which equal rows came out in two ways.
            models: Models of which the same holds.
            padded: Models of which it holds for rows that differ in their padding only.
        """
        if ops:
            first = min(ops, key=lambda one: _when(one.conflicts))
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
        call, dimension = found.conflicts[0].later.call, facts.get("dim")
        ranks = [len(tensor.shape) for tensor, axis in zip(call.inputs, found.axes.inputs, strict=True) if axis >= 0]
        along = dimension is not None and any(
            dimension % max(rank, 1) == axis
            for rank, axis in zip(ranks, (axis for axis in found.axes.inputs if axis >= 0), strict=True)
        )
        # A softmax over the rows, for instance.
        takes_all = along or (takes_statistics(found.place.name) and facts.get("trains"))
        return BatchKind.MIXING if takes_all else BatchKind.OP

    def _mixing(self, model: Matches) -> Origin | None:
        """The first op within a model that takes rows together, or draws numbers for them."""
        run = model.conflicts[0].later.run
        # Of a function that calls no module, all ops are its own.
        within = any(place.is_module and place.calls[0].process is not None for place in self._places)
        candidates: list[tuple[int, Origin]] = []
        for found in self._ops:
            if found.conflicts and moves_rows(found.place.name):
                index = min(conflict.later.index for conflict in found.conflicts)
                candidates.append((index, self._divergence(found, BatchKind.MIXING)))
        for position, axes in self._axes.items():
            place = self._places[position]
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
        """Whether an op that works on rows reads what another one made of a whole batch, or what was computed from that."""
        by_row = {id(placed): found.axes for found in self._ops for placed in found.place.calls}
        later = (placed for place in self._places if not place.is_module for placed in place.calls)
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
        sizes = (self._sizes[conflict.earlier.run], self._sizes[later.run])
        counts = len(found.conflicts), found.matched
        return _origin(later, kind, sizes, counts, axes[conflict.output])

    def _unpaired(self, placed: PlacedCall, kind: BatchKind) -> Origin:
        """An op whose rows cannot be compared, since it makes none or takes none."""
        other = self._sizes[0 if placed.run else min(1, len(self._sizes) - 1)]
        return _origin(placed, kind, (other, self._sizes[placed.run]), (None, None), 0)


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
    """What came out, where a record tells."""
    if placed.call.record == NONE or placed.process is None:
        return ()
    shape = placed.call.outputs[position].shape if position < len(placed.call.outputs) else None
    record = entry(placed.process, *placed.process.record(placed.call.record))
    layout = next((one.layout for one in record.outputs if one.layout is not None and one.layout.shape == shape), None)
    if layout is None:
        return ()
    return (OutputDifference(layout.dtype, layout.shape, layout.device, layout.elements),)


_DETAILS = {
    BatchKind.OP: "Equal rows, with equal weights and arguments, came out in two ways: in batches of {}.",
    BatchKind.MIXING: "The op takes the rows of a batch together, so what becomes of a row depends on the others (batches of {}).",
    BatchKind.RNG: "The op draws random numbers, so a row gets other ones in another batch (batches of {}).",
    BatchKind.PADDING: (
        "The same row came with other numbers of zeros at its end, since batches are padded to their longest row, and the model gave "
        "another result (batches of {})."
    ),
    None: "Equal rows had different results of the whole model (batches of {}); no recorded op tells why.",
}


def size_pair(sizes: tuple[int, int]) -> str:
    """Two sizes in words; equal ones are of two different batches."""
    return (
        f"{sizes[0]} and {sizes[1]}"
        if sizes[0] != sizes[1]
        else f"{sizes[0]}, and of {sizes[0]} with other rows or random numbers"
    )


def _when(conflicts: Sequence[Conflict]) -> tuple[int, int]:
    first = _first(conflicts)
    return first.later.run, first.later.index


def _first(conflicts: Sequence[Conflict]) -> Conflict:
    return min(conflicts, key=lambda one: (one.later.run, one.later.index))
