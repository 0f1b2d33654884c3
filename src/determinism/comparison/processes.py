"""The result of comparing one process of two runs: in how many records of each step it differs, and when a difference first showed in the loss, in
what the program keeps, or in what it printed or saved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from determinism.comparison.columns import Group, StepCounts, held_by_position
from determinism.comparison.divergence import Dataflow, DeadDifference, Divergence, Visible
from determinism.comparison.records import NOTHING, Pair, Received
from determinism.op_semantics import OpSemantics
from determinism.trace.chunks import Chunk, Names
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import RESULTS_OP, Frame, Table
from determinism.types import NO_DIGEST, Role, Stream

_UNREAD_RESULT = "result that the program may read (no other op used it)"
"""What `Visible` calls a result that no op used, such as a loss that a function returns: its use was not observed."""


class MadeValues(Protocol):
    """The differing values of a stream, each of which another stream may have received."""

    def origin_of(self, pairs: Set[Pair], first: ProcessTrace) -> tuple[Divergence, Received] | None:
        """Return the origin of the first of these values that was made here, and what it received; None if none was."""


@dataclass
class ProcessComparison:
    """The result of comparing one process of two runs."""

    key: str
    started: float = 0.0
    """When the process of the first run began to record, in seconds since 1970."""
    divergence: Divergence | None = None
    first_visible: Visible | None = None
    infected: list[Visible] = field(default_factory=list)
    absorbed: bool = False
    dead_differences: int = 0
    dead_first: list[DeadDifference] = field(default_factory=list)
    first_dead: Divergence | None = None
    """The first dead difference as a divergence, for when dead differences count, too."""
    sent: Divergence | None = None
    """The first difference sent to other processes through a collective, whether anything here read it or not."""
    exchanged: Divergence | None = None
    """The divergence, attributed to the collective that it came through, if this process gave it equal values in both runs."""
    shared: Divergence | None = None
    """The first that began here and was written where other processes may read it, whether anything here read it or not."""
    received: Received = NOTHING
    """What the divergence got from other streams."""
    loaded: frozenset[Pair] = frozenset()
    """Differing values that were loaded from files before it."""
    stream: Stream = Stream.PROCESS
    part_of: str = ""
    """Key of the process, also for the streams of its threads, pools and workers."""
    traces: tuple[ProcessTrace, ProcessTrace] | None = None
    counts: StepCounts | None = None
    """How many records differ in each step; None for streams without an order, and where nothing that counts differs."""
    dataflow: Dataflow | None = None
    """The records around the divergence."""
    has_order: bool = True
    """Whether the records of the stream have an order of their own."""
    made: MadeValues | None = None
    """Its differing values, live or dead; for a stream with an order, those that nothing in it read. None if there are none."""
    is_partial: bool = False
    """Whether more of its records differ than could be followed, so that finding none that counts proves nothing."""


ProcessPair = tuple[ProcessTrace, ProcessTrace]
ComparePairs = Callable[[Sequence[ProcessPair], bool], Sequence[ProcessComparison | None]]
"""Compares pairs of processes; told whether we stopped a run. Returns None for a pair that the caller must compare itself."""


def compare_none(pairs: Sequence[ProcessPair], is_stopped: bool) -> Sequence[ProcessComparison | None]:
    """Leave every pair to the caller."""
    return [None] * len(pairs)


# When a difference first showed.


_SINKS = (Role.ESCAPE, Role.LOSS, Role.CHECKPOINT, Role.STATE, Role.HELD)
_HELD_OPS = {
    "determinism::parameter": "parameter",
    "determinism::gradient": "gradient",
    "determinism::buffer": "buffer",
    "determinism::optimizer_state": "optimizer state",
}
SORTS = ("loss", "gradient", "parameter", "buffer", "optimizer state", "checkpoint", "escape")


class VisibleDifferences:
    """Collects, for each sort of value, the first step at which it differed."""

    def __init__(self, first: ProcessTrace, second: ProcessTrace, *, has_order: bool = True) -> None:
        self._process = first
        self._processes = (first, second)
        self._has_order = has_order
        self._differing: list[np.ndarray] = []
        self.first: dict[str, Visible] = {}

    @property
    def is_complete(self) -> bool:
        """Whether a report would show nothing more."""
        return "loss" in self.first and "parameter" in self.first

    def add(self, group: Group) -> None:
        """Look at one more group of the first process, from the first divergence on."""
        paired = group.pairing.are_pairs
        differs = group.flags.outputs & paired
        differing = group.keys[differs | ((group.pairing.first >= 0) & ~paired)]
        if len(differing):
            self._differing.append(np.sort(differing))
        elif not self._differing and paired.all() and not group.flags.digests.any():
            return
        rows = group.pairing.first[paired]
        roles = group.first.columns["role"][rows] if len(rows) else np.zeros(0)
        self._look_at_extra(group)
        for role in _SINKS:
            # Steps and memory that is handed out have no outputs; their inputs show whether they differ.
            by_inputs = role in (Role.STATE, Role.ESCAPE)
            chosen = roles == role if by_inputs else (roles == role) & differs[paired]
            for row in rows[chosen]:
                self._look(group, int(row), role)

    def _look_at_extra(self, group: Group) -> None:
        """Look at losses and numbers that only one run has: among several reads in a row, equal ones pair wherever they are."""
        for run, (mine, other, chunk) in enumerate(
            (
                (group.pairing.first, group.pairing.second, group.first),
                (group.pairing.second, group.pairing.first, group.second),
            )
        ):
            alone = mine[(mine >= 0) & (other < 0)]
            if not len(alone):
                continue
            roles = chunk.columns["role"][alone]
            for row in alone[roles == Role.LOSS][:1]:
                self._note("loss", int(chunk.columns["step"][row]), f"loss that only run {run + 1} has")
            self._look_at_reads(alone[roles == Role.ESCAPE], chunk, run)
        both = group.pairing.are_pairs
        reads, others = group.pairing.first[both], group.pairing.second[both]
        is_read = group.first.columns["role"][reads] == Role.ESCAPE if len(reads) else np.zeros(0, dtype=bool)
        if is_read.any() and (np.diff(others[is_read]) < 0).any():
            self._look_at_reads(reads[is_read], group.first, 0)

    def _look_at_reads(self, rows: np.ndarray, chunk: Chunk, run: int) -> None:
        """Note the first number read by these records, which have no equal read at the same place in the other run."""
        if not self._has_order or "escape" in self.first:
            # Which of several threads reads a number first does not show that a difference reached it.
            return
        row = next((int(row) for row in rows if chunk.children["outputs"].of(int(row))), None)
        if row is not None:
            self._note_escape(chunk, row, self._processes[run].names)

    def _look(self, group: Group, row: int, role: Role) -> None:
        step = int(group.first.columns["step"][row])
        names = self._process.names
        if role is Role.STATE:
            self._look_at_state(group, row, step)
            return
        if role is Role.LOSS:
            self._note("loss", step, "loss")
        elif role is Role.CHECKPOINT:
            self._note("checkpoint", step, "saved tensor")
        elif role is Role.HELD:
            sort = _HELD_OPS.get(names.text(Table.OP, int(group.first.columns["op"][row])) or "", "parameter")
            name = names.text(Table.ARGUMENTS, int(group.first.columns["arguments"][row]))
            self._note(sort, step, f"{sort} {name}")
        elif "escape" not in self.first and self._escaped_differs(group, row):
            self._note_escape(group.first, row, self._process.names)

    def _escaped_differs(self, group: Group, row: int) -> bool:
        """Whether what left the framework differs: the value itself, or the tensor whose memory was handed out."""
        position = int(np.flatnonzero(group.pairing.first == row)[0])
        if group.first.children["outputs"].of(row):
            return bool(group.flags.outputs[position])
        read_apart = self._inputs_read_apart(group, row)
        return bool(read_apart) or any(
            self._held_differs(group, row, int(at)) for at in self._differing_inputs(group, row)
        )

    def _note_escape(self, chunk: Chunk, row: int, names: Names) -> None:
        stack = names.stack(int(chunk.columns["stack"][row]))
        op = names.op(int(chunk.columns["op"][row]))
        name = "item" if OpSemantics.READS_NUMBER in op.semantics else op.partition("::")[2].partition(".")[0]
        # No call of the program represents values that nothing was seen to read.
        what = (
            _UNREAD_RESULT if op == RESULTS_OP else "printed tensor" if name == "print" else f"value read by {name}()"
        )
        self._note("escape", int(chunk.columns["step"][row]), what, stack[0] if stack else None)

    def _look_at_state(self, group: Group, row: int, step: int) -> None:
        if all(sort in self.first for sort in ("parameter", "gradient", "buffer", "optimizer state")):
            return
        read_apart = self._inputs_read_apart(group, row)
        hit = sorted({*map(int, self._differing_inputs(group, row)), *read_apart})
        if not hit:
            return
        text = self._process.names.text(Table.ARGUMENTS, int(group.first.columns["arguments"][row])) or "[]"
        held: list[list[str]] = json.loads(text) if text.startswith("[[") else []
        for at in hit:
            is_new = at < len(held) and held[at][0] not in self.first
            if is_new and (at in read_apart or self._held_differs(group, row, at)):
                self._note(held[at][0], step, f"{held[at][0]} {held[at][1]}")

    def _differing_inputs(self, group: Group, row: int) -> np.ndarray:
        """Return which inputs of a record come from one whose outputs differ."""
        if len(self._differing) > 1:
            self._differing = [np.sort(np.concatenate(self._differing), kind="stable")]
        if not self._differing:
            return np.zeros(0, dtype=np.int64)
        (known,) = self._differing
        producers = group.producers.first[group.first.children["inputs"].part(row)]
        places = np.minimum(np.searchsorted(known, producers), len(known) - 1)
        return np.flatnonzero(known[places] == producers)

    def _inputs_read_apart(self, group: Group, row: int) -> set[int]:
        """Return which inputs held different values that no record of this stream made: another thread or the program wrote them."""
        position = int(np.flatnonzero(group.pairing.first == row)[0])
        if not group.flags.digests[position]:
            return set()
        mine = held_by_position(group.first.children["input_digests"], row)
        other = held_by_position(group.second.children["input_digests"], int(group.pairing.second[position]))
        return {at for at in mine.keys() & other.keys() if mine[at] != other[at]}

    def _held_differs(self, group: Group, row: int, at: int) -> bool:
        """Whether two runs hold different values: their producers may be paired differently, or their values were not digested."""
        position = int(np.flatnonzero(group.pairing.first == row)[0])
        other = int(group.pairing.second[position])
        digests = [
            _digest_of_input(self._processes[0], group.first, row, at),
            _digest_of_input(self._processes[1], group.second, other, at),
        ]
        return NO_DIGEST not in digests and digests[0] != digests[1]

    def _note(self, sort: str, step: int, what: str, site: Frame | None = None) -> None:
        self.first.setdefault(sort, Visible(step, what, site))

    def earliest(self) -> Visible | None:
        """Return what a person would see first: the loss or a value the program keeps; else a value that was read or saved."""
        main = [self.first[sort] for sort in ("loss", "parameter", "buffer") if sort in self.first]
        rest = [
            self.first[sort] for sort in ("escape", "checkpoint", "gradient", "optimizer state") if sort in self.first
        ]
        chosen = main or rest
        return min(chosen, key=lambda visible: visible.step) if chosen else None


def _digest_of_input(process: ProcessTrace, chunk: Chunk, row: int, at: int) -> bytes:
    """Return the digest of the output that an input of a record refers to; `NO_DIGEST` where there is none."""
    inputs = chunk.children["inputs"]
    entry = int(inputs.starts[row]) + at
    if at >= len(inputs.of(row)) or not inputs.columns["producer"][entry]:
        return NO_DIGEST
    made_in, made_at = process.record(chunk.number(row) - int(inputs.columns["producer"][entry]))
    made, output = made_in.children["outputs"].digests_of(made_at), int(inputs.columns["output"][entry])
    return made[output] if output < len(made) else NO_DIGEST
