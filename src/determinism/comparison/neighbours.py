"""The dataflow around the first divergence: what it read, and what read it, a few records up and down."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from determinism.comparison.dataflow import Dataflow, FlowEdge, FlowNode, FlowOutput
from determinism.comparison.origins import Entry, entry
from determinism.comparison.roots import Root
from determinism.trace.chunk import Chunk
from determinism.trace.reader import ProcessTrace
from determinism.types import Phase, Role

_ROWS = 2
"""How many rows of records above and below."""
_MOST_IN_A_ROW = 5
_MOST_READERS = 1000
"""Of one record that are looked at."""


def dataflow(root: Root, processes: tuple[ProcessTrace, ProcessTrace], num_equal: int) -> Dataflow | None:
    """Collect the records around a divergence.

    Args:
        root: Where the runs depart from each other.
        processes: The process of both runs.
        num_equal: How many records are equal in both runs from the start.

    Returns:
        The records and the values between them; None if nothing is known to have read or made any of them.
    """
    around = _Surroundings(root, processes, num_equal)
    origin = around.origin
    rows: dict[int, list[Entry]] = {0: [origin]}
    left_out = 0
    for direction, neighbours in ((-1, around.producers), (1, around.readers)):
        seen = {origin.number}
        row = [origin]
        for distance in range(1, _ROWS + 1):
            found = {one.number: one for reached in row for one in neighbours(reached) if one.number not in seen}
            seen |= found.keys()
            # Differences are what is looked for; the rest shows how far they did not come.
            row = sorted(found.values(), key=lambda one: (not around.differs(one.number), one.number))
            left_out += max(0, len(row) - _MOST_IN_A_ROW)
            row = rows[direction * distance] = row[:_MOST_IN_A_ROW]
    nodes = {one.number: around.node(one, distance) for distance, row in sorted(rows.items()) for one in row}
    edges = _edges([one for row in rows.values() for one in row], nodes)
    return Dataflow(_numbered(nodes), edges, left_out) if edges else None


def _edges(entries: list[Entry], nodes: dict[int, FlowNode]) -> list[FlowEdge]:
    numbers = {number: at for at, number in enumerate(nodes)}
    pairs = {(value.producer, one.number) for one in entries for value in one.inputs if value.producer in nodes}
    return [FlowEdge(numbers[source], numbers[target], nodes[source].differs) for source, target in sorted(pairs)]


def _numbered(nodes: dict[int, FlowNode]) -> list[FlowNode]:
    return [node._replace(identifier=at) for at, node in enumerate(nodes.values())]


class _Surroundings:
    """The run that holds the record, and what is known of its other records."""

    def __init__(self, root: Root, processes: tuple[ProcessTrace, ProcessTrace], num_equal: int) -> None:
        group = root.group
        side = 0 if root.first is not None else 1
        self._process = processes[side]
        self._chunk: Chunk = (group.first, group.second)[side]
        rows = (group.pairing.first, group.pairing.second)[side]
        self._position = np.full(self._chunk.rows, -1, dtype=np.int64)
        self._position[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        self._different = group.flags.outputs | (group.pairing.first < 0) | (group.pairing.second < 0)
        self._num_equal = num_equal
        inputs = self._chunk.children["inputs"]
        owners = np.repeat(np.arange(self._chunk.rows), np.diff(inputs.starts))
        distances = inputs.columns["producer"]
        self._owners = owners[distances > 0]
        self._produced_by = self._chunk.first + self._owners - distances[distances > 0]
        self.origin = self._entry(int(rows[root.position]))

    def _entry(self, row: int) -> Entry:
        return entry(self._process, self._chunk, row)

    def producers(self, one: Entry) -> Iterator[Entry]:
        """The records whose outputs a record read or wrote into."""
        for number in {value.producer for value in one.inputs if value.producer >= 0}:
            row = number - self._chunk.first
            yield self._entry(row) if row >= 0 else entry(self._process, *self._process.record(number))

    def readers(self, one: Entry) -> Iterator[Entry]:
        """The records of the same step that read an output of a record; not those that say what is held at its end."""
        owners = np.unique(self._owners[self._produced_by == one.number])
        owners = owners[self._chunk.columns["role"][owners] != Role.STATE]
        for row in owners[:_MOST_READERS]:
            yield self._entry(int(row))

    def differs(self, number: int) -> bool | None:
        """Whether the outputs of a record differ between the runs; None where its partner is not known."""
        if number < self._num_equal:
            return False
        row = number - self._chunk.first
        return bool(self._different[self._position[row]]) if row >= 0 else None

    def node(self, one: Entry, distance: int) -> FlowNode:
        """A record as it is shown."""
        row = one.number - self._chunk.first
        chunk, at = (self._chunk, row) if row >= 0 else self._process.record(one.number)
        stack = self._process.names.stack(int(chunk.columns["stack"][at]))
        return FlowNode(
            identifier=one.number,
            distance=distance,
            op=one.op,
            module=one.module,
            step=one.step,
            phase=Phase(one.phase).label,
            site=stack[0] if stack else None,
            differs=self.differs(one.number),
            outputs=tuple(
                FlowOutput(made.layout.dtype, made.layout.shape, made.layout.device)
                for made in one.outputs
                if made.layout is not None
            ),
        )
