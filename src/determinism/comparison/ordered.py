"""Compares a process of two runs, if its records have an order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import numpy as np

from determinism.comparison.columns import Canonical
from determinism.comparison.divergence import Dataflow, Divergence, FlowEdge, FlowNode, FlowOutput
from determinism.comparison.flow import Flow
from determinism.comparison.kind import as_race, dead_difference, describe, of_collective, of_kernel
from determinism.comparison.lockstep import Lockstep
from determinism.comparison.processes import SORTS, ProcessComparison, VisibleDifferences
from determinism.comparison.records import Entry, Pair, Received, Root, entry_of, outputs_with, received_by
from determinism.trace.chunks import Chunk
from determinism.trace.process import ProcessTrace
from determinism.types import Kind, Level, Phase, Role

# The dataflow around the first divergence: what it read, and what read it, a few records up and down.

_ROWS = 2
"""How many rows of records above and below."""
_MOST_IN_A_ROW = 5
_MOST_READERS = 1000
"""How many readers of one record are looked at."""


def dataflow(root: Root, processes: tuple[ProcessTrace, ProcessTrace], num_equal: int) -> Dataflow | None:
    """Collect the records around a root, given how many records are equal in both runs from the start.

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
            # Differences matter most; the rest shows how far they did not reach.
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
    """The run that holds the record, and what is known about its other records."""

    def __init__(self, root: Root, processes: tuple[ProcessTrace, ProcessTrace], num_equal: int) -> None:
        group = root.group
        side = 0 if root.first is not None else 1
        self._process = processes[side]
        self._chunk: Chunk = (group.first, group.second)[side]
        rows = (group.pairing.first, group.pairing.second)[side]
        self._position = np.full(self._chunk.rows, -1, dtype=np.int64)
        self._position[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        self._different = group.flags.outputs | ~group.pairing.are_pairs
        self._num_equal = num_equal
        inputs = self._chunk.children["inputs"]
        distances = inputs.columns["producer"]
        self._owners = inputs.owners[distances > 0]
        self._produced_by = self._chunk.first + self._owners - distances[distances > 0]
        self.origin = self._entry(int(rows[root.position]))

    def _entry(self, row: int) -> Entry:
        return entry_of(self._process, self._chunk, row)

    def producers(self, one: Entry) -> Iterator[Entry]:
        """Yield the records whose outputs a record read or wrote into."""
        for number in {value.producer for value in one.inputs if value.producer >= 0}:
            row = number - self._chunk.first
            yield self._entry(row) if row >= 0 else entry_of(self._process, *self._process.record(number))

    def readers(self, one: Entry) -> Iterator[Entry]:
        """Yield the records of the same step that read an output of a record, except those that list what is held at its end."""
        owners = np.unique(self._owners[self._produced_by == one.number])
        owners = owners[self._chunk.columns["role"][owners] != Role.STATE]
        for row in owners[:_MOST_READERS]:
            yield self._entry(int(row))

    def differs(self, number: int) -> bool | None:
        """Whether the outputs of a record differ between the runs; None where its partner is unknown."""
        if number < self._num_equal:
            return False
        row = number - self._chunk.first
        return bool(self._different[self._position[row]]) if row >= 0 else None

    def node(self, one: Entry, distance: int) -> FlowNode:
        """Return a record as a report shows it."""
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


def compare_processes(first: ProcessTrace, second: ProcessTrace) -> ProcessComparison:
    """Compare the records of two processes with the same key."""
    lockstep = Lockstep(first, second, Canonical(first, second))
    flow = Flow(first, second, lambda number: lockstep.translation.key(number))
    visible = VisibleDifferences(first, second)
    for group in lockstep.groups():
        flow.add(group)
        lockstep.pairs_by_content = not flow.is_settled
        visible.add(group)
        lockstep.counts.add(group.first, group.second, group.pairing, group.flags.outputs)
        if flow.is_settled and visible.is_complete:
            lockstep.count_on()
            break
    started = float(first.description.get("started") or 0.0)
    result = ProcessComparison(first.key, started, traces=(first, second), part_of=first.key)
    level = Level(first.description.get("level", "op"))
    result.dead_differences, dead = flow.dead()
    if flow.origin is not flow.live:
        result.dead_differences, dead = result.dead_differences - 1, [one for one in dead if one is not flow.origin]
    result.dead_first = [dead_difference(describe(root, first, second, Level.OP)) for root in dead[:5]]
    if dead:
        result.first_dead = describe(dead[0], first, second, level)
        result.made = _unread(flow, (first, second), level)
    if flow.sent is not None and flow.sent is not flow.live:
        result.sent = describe(flow.sent, first, second, level)
    if flow.shared is not None and not received_by(flow.shared).by_shared_memory:
        result.shared = describe(flow.shared, first, second, level)
    if flow.live is not None:
        begun = flow.origin or flow.live
        described = of_kernel(describe(begun, first, second, level), begun, first)
        result.divergence = _seen_racing(described, (first, second))
        result.exchanged = of_collective(result.divergence, flow.live, first)
        result.received = received_by(flow.live)
        result.loaded = frozenset(flow.loaded)
        result.first_visible = visible.earliest()
        result.infected = [visible.first[sort] for sort in SORTS if sort in visible.first]
        vanished = not visible.first and not flow.is_held
        result.absorbed = vanished and result.divergence.kind is not Kind.STRUCTURE
        result.counts = lockstep.counts
        result.dataflow = dataflow(flow.live, (first, second), lockstep.num_equal)
    return result


def _seen_racing(divergence: Divergence, processes: tuple[ProcessTrace, ProcessTrace]) -> Divergence:
    """Attribute the divergence to racing threads, if one wrote what its op used while that ran."""
    process = processes[divergence.records_of]
    is_noted = divergence.record + process.begin in (process.description.get("overlapped") or ())
    return as_race(divergence) if divergence.kind is Kind.OP and is_noted else divergence


_MOST_UNREAD = 64


@dataclass(frozen=True)
class UnreadValues:
    """The differing values that nothing in their own process read; another thread or process may have."""

    outputs: Mapping[tuple[int, int], int]
    """The root that an output descends from, by the number of its record in the first run and its position."""
    roots: Mapping[int, tuple[Divergence, Received]]

    def origin_of(self, pairs: Set[Pair], first: ProcessTrace) -> tuple[Divergence, Received] | None:
        """Return the origin of the first of these values that was made here, and what it received; None if none was."""
        made = outputs_with({digest for digest, _ in pairs}, first.chunks())
        roots = {self.outputs[at] for places in made.values() for at in places if at in self.outputs}
        return self.roots[min(roots)] if roots else None


def _unread(flow: Flow, processes: tuple[ProcessTrace, ProcessTrace], level: Level) -> UnreadValues:
    roots = flow.unread(_MOST_UNREAD)
    begun = {index: (describe(root, *processes, level), received_by(root)) for index, root in roots.items()}
    return UnreadValues(flow.outputs_of(roots), begun)


# Where one of two processes did not reach its end.


def compare_common_steps(first: ProcessTrace, second: ProcessTrace) -> ProcessComparison:
    """Compare two processes up to the last step that both began; as equal if nothing is left.

    Raises:
        TraceError: A trace is damaged.
    """
    counts = [0, 0]
    # Otherwise one of them has not yet reached what counts its steps.
    if first.steps_by == second.steps_by:
        step = min(last_step(process) for process in (first, second))
        counts = [_count_before(process, step) for process in (first, second)]
    if not min(counts):
        return ProcessComparison(first.key)
    return compare_processes(first.until(counts[0]), second.until(counts[1]))


def last_step(process: ProcessTrace) -> int:
    """Return the step of the last record."""
    return max((int(chunk.columns["step"][-1]) for chunk in process.chunks()), default=0)


def _count_before(process: ProcessTrace, step: int) -> int:
    count = 0
    for chunk in process.chunks():
        before = int((chunk.columns["step"] < step).sum())
        count += before
        if before < chunk.rows:
            break
    return count
