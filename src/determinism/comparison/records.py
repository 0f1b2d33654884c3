"""Records of two runs: single ones with their names resolved, groups of pairs, and the roots where differences begin."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from determinism.comparison.columns import Flags, Named, Pairing, RunPair, held_by_position
from determinism.comparison.result import MOST_ENTRIES, StepSpan
from determinism.op_semantics import Op, OpSemantics
from determinism.trace.chunks import Array, Chunk
from determinism.trace.schema import INPUT_PATHS, Layout, Table
from determinism.types import Access, Role

_VALUE_SINKS = frozenset({Role.ESCAPE, Role.CHECKPOINT, Role.LOSS, Role.MODULE, Role.HELD})


class Input(NamedTuple):
    """One input of a record."""

    producer: int
    """Number of the record that produced it; -1 if nobody recorded did."""
    output: int
    access: Access
    layout: Layout | None
    digest: bytes | None
    """What it held, where that was digested."""


class Output(NamedTuple):
    """One output of a record."""

    layout: Layout | None
    digest: bytes


class Entry(NamedTuple):
    """One record, with its names resolved."""

    number: int
    step: int
    phase: int
    role: Role
    op: Op
    module: str | None
    arguments: str
    input_paths: tuple[str, ...]
    """Where each input is among the arguments of a function, as far as its record names them."""
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]

    @property
    def is_copy(self) -> bool:
        """Whether the op only moves values."""
        return OpSemantics.COPIES in self.op.semantics

    @property
    def takes_each_by_itself(self) -> bool:
        """Whether the op does the same to each of several tensors, of which none has a part in what comes of the others."""
        return OpSemantics.TAKES_EACH_BY_ITSELF in self.op.semantics

    @property
    def is_collective(self) -> bool:
        """Whether the op exchanges tensors with other processes; then its outputs were not there yet to be digested."""
        return OpSemantics.COLLECTIVE in self.op.semantics

    @property
    def sends(self) -> bool:
        """Whether other processes get what the op read."""
        return OpSemantics.SENDS in self.op.semantics

    @property
    def shares(self) -> bool:
        """Whether other processes may read what it wrote, where it lies."""
        return any(
            made.layout is not None and made.layout.is_shared and not only_moves(self.op, made.layout)
            for made in self.outputs
        )

    @property
    def counts(self) -> bool:
        """Whether a difference that it reads counts: the value is looked at, saved, or made the loss."""
        return self.role in _VALUE_SINKS

    @property
    def only_receives(self) -> bool:
        """Whether the op is given tensors only to fill them."""
        return OpSemantics.ONLY_RECEIVES in self.op.semantics

    @property
    def receives_from_any(self) -> bool:
        """Whether the op takes what whichever process sent first."""
        return OpSemantics.RECEIVES_FROM_ANY in self.op.semantics

    @property
    def shows_what_it_read(self) -> bool:
        """Whether equal results mean that the same bits were read."""
        return bool(self.outputs) and (self.is_copy or self.role in (Role.ESCAPE, Role.CHECKPOINT, Role.LOSS))

    @property
    def reads(self) -> tuple[Input, ...]:
        """The inputs whose content takes part in the result."""
        return tuple(i for i in self.inputs if i.access is Access.READ)

    @property
    def carries(self) -> tuple[Input, ...]:
        """What was in memory that the op writes into."""
        return tuple(i for i in self.inputs if i.access is Access.CARRY)


def entry_of(process: Named, chunk: Chunk, row: int) -> Entry:
    """The record at a position of a chunk."""
    names = process.names
    columns = {name: int(cells[row]) for name, cells in chunk.columns.items()}
    number = chunk.number(row)
    inputs = chunk.children["inputs"]
    held = held_by_position(chunk.children["input_digests"], row)
    found = []
    for position, at in enumerate(inputs.of(row)):
        distance = int(inputs.columns["producer"][at])
        found.append(
            Input(
                number - distance if distance else -1,
                int(inputs.columns["output"][at]),
                Access(int(inputs.columns["access"][at])),
                names.layout(int(inputs.columns["layout"][at])),
                held.get(position),
            )
        )
    outputs = chunk.children["outputs"]
    made = tuple(
        Output(names.layout(int(outputs.columns["layout"][at])), outputs.columns["digest"][at].tobytes())
        for at in outputs.of(row)
    )
    arguments, _, paths = (names.text(Table.ARGUMENTS, columns["arguments"]) or "").partition(INPUT_PATHS)
    return Entry(
        number, columns["step"], columns["phase"], Role(columns["role"]), names.op(columns["op"]),
        names.text(Table.MODULE, columns["module"]), arguments, _paths_in(paths), tuple(found), made,
    )  # fmt: skip


def only_moves(op: Op, layout: Layout) -> bool:
    """Whether an op looks at shared memory anew, or is what copies the bytes of a storage into it."""
    semantics = op.semantics
    copies_bytes = OpSemantics.COPIES_INTO in semantics and layout.dtype == "uint8" and len(layout.shape) == 1
    return copies_bytes or OpSemantics.REBINDS_STORAGE in semantics


@dataclass(frozen=True)
class Group:
    """Consecutive records of both runs, paired. All arrays but the chunks have one entry per pair or leftover."""

    first: Chunk
    second: Chunk
    pairing: Pairing
    keys: Array
    """Number by which both runs know the record: that of the first run, or -2 - number in the second."""
    flags: Flags
    """For pairs; False for leftovers."""
    producers: RunPair[Array]
    """Per input entry: key of the producer, -1 for external."""
    layouts: RunPair[Array]
    """Per input entry: canonical number of the view through which it was read."""
    is_unordered: ClassVar[bool] = False
    """Whether the records have no order of their own."""

    def reads(self, side: int) -> list[tuple[int, int]]:
        """Per input entry of a side: key of the producer, and view."""
        return list(zip(self.producers[side].tolist(), self.layouts[side].tolist(), strict=True))


class Aspects(NamedTuple):
    """In what a pair of records differs."""

    outputs: bool
    edges: bool
    digests: bool
    arguments: bool
    generators: bool


@dataclass(frozen=True)
class Root:
    """A record that differs, and received no difference."""

    index: int
    """Counts roots in execution order."""
    group: Group = field(repr=False)
    position: int
    """Within the group."""
    first: Entry | None
    second: Entry | None
    aspects: Aspects
    reads_unwritten: bool
    allocation: int | None
    """Record of the first run that allocated the memory which is read unwritten."""
    came_in: bool
    """Whether an input that differs arrived from another process, through a collective or a receive."""
    received_at: int | None = None
    """Record of the first run that received such an input from whichever process sent first."""
    received_behind: int | None = None
    """The same, where it is not the input itself but what that was made of."""
    exchanged_at: int | None = None
    """Record of the first run of the collective through which all that differs here came, if this process gave it equal values."""

    @property
    def is_extra(self) -> bool:
        """Whether only one of the runs has the record."""
        return self.first is None or self.second is None


Pair = tuple[bytes, bytes]
"""Digests of one value in both runs."""


class Received(NamedTuple):
    """What came in from outside and differs between the runs."""

    pairs: frozenset[Pair] = frozenset()
    """Values known by their digests: an input that no record of the stream made, or a tensor of a batch."""
    by_shared_memory: bool = False
    """Whether it was read from memory that processes share."""
    by_collective: bool = False
    """Whether it came through a collective or a receive, where sender and receiver may hold different values."""


NOTHING = Received()


def differing_reads(first: Entry | None, second: Entry | None) -> set[Pair]:
    """What two records read that both digested, and that differs."""
    if first is None or second is None:
        return set()
    reads = zip(first.reads, second.reads, strict=False)
    return {
        (mine.digest, other.digest)
        for mine, other in reads
        if mine.digest is not None and other.digest is not None and mine.digest != other.digest
    }


def received_by(root: Root) -> Received:
    """What a root got from outside."""
    first, second = root.first, root.second
    if first is None or second is None:
        return NOTHING
    pairs: set[Pair] = set()
    by_shared_memory = False
    for mine, other in zip(first.reads, second.reads, strict=False):
        if mine.digest is None or other.digest is None or mine.digest == other.digest:
            continue
        is_shared = mine.layout is not None and mine.layout.is_shared
        if is_shared or mine.producer < 0 or other.producer < 0:
            pairs.add((mine.digest, other.digest))
            by_shared_memory |= is_shared
    if first.role is Role.BATCH:
        pairs |= {(mine.digest, other.digest) for mine, other in zip(first.outputs, second.outputs, strict=False)}
    return Received(frozenset(pair for pair in pairs if pair[0] != pair[1]), by_shared_memory, root.came_in)


def _paths_in(text: str) -> tuple[str, ...]:
    try:
        paths = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    return tuple(str(path) for path in paths) if isinstance(paths, list) else ()


class StepCounts:
    """The counts of one process; of very many steps, several are counted together."""

    def __init__(self) -> None:
        self._width = 1
        """How many steps are counted together."""
        self._counts: dict[int, list[int]] = {}
        """By the step divided by the width: records, and how many of them differ."""
        self._last_step = -1

    def add_equal(self, chunk: Chunk) -> None:
        """Count records that are equal in both runs."""
        self._add(chunk.columns["step"], _counting(chunk), np.zeros(chunk.rows, dtype=bool))

    def add(self, first: Chunk, second: Chunk, pairing: Pairing, outputs: Array) -> None:
        """Count records of both runs.

        Args:
            first: Records of the first run.
            second: Records of the second run.
            pairing: Which of them belong together.
            outputs: For each entry of the pairing, whether the outputs differ.
        """
        alone = ~pairing.are_pairs
        steps, counting = np.zeros(len(alone), dtype=np.int64), np.zeros(len(alone), dtype=bool)
        for chunk, rows in ((second, pairing.second), (first, pairing.first)):
            there = rows >= 0
            steps[there] = chunk.columns["step"][rows[there]]
            counting[there] = _counting(chunk)[rows[there]]
        self._add(steps, counting, outputs | alone)

    def _add(self, steps: Array, counting: Array, different: Array) -> None:
        steps, different = steps[counting], different[counting]
        if not len(steps):
            return
        self._last_step = max(self._last_step, int(steps.max()))
        keys, inverse, records = np.unique(steps // self._width, return_inverse=True, return_counts=True)
        differing = np.bincount(inverse, weights=different, minlength=len(keys))
        for key, num_records, num_different in zip(keys.tolist(), records.tolist(), differing.tolist(), strict=True):
            counts = self._counts.setdefault(key, [0, 0])
            counts[0] += num_records
            counts[1] += int(num_different)
        while len(self._counts) > 2 * MOST_ENTRIES:
            self._widen()

    def _widen(self) -> None:
        self._width *= 2
        narrow, self._counts = self._counts, {}
        for key, (records, different) in narrow.items():
            counts = self._counts.setdefault(key // 2, [0, 0])
            counts[0] += records
            counts[1] += different

    @staticmethod
    def spans(several: Iterable[StepCounts]) -> list[StepSpan]:
        """The counts of several processes together, in the order of the steps."""
        total = StepCounts()
        for one in several:
            while total._width < one._width:
                total._widen()
            total._last_step = max(total._last_step, one._last_step)
            for key, (records, different) in one._counts.items():
                counts = total._counts.setdefault(key * one._width // total._width, [0, 0])
                counts[0] += records
                counts[1] += different
        while len(total._counts) > MOST_ENTRIES:
            total._widen()
        width = total._width
        return [
            StepSpan(key * width, min((key + 1) * width - 1, total._last_step), *counts)
            for key, counts in sorted(total._counts.items())
        ]


def _counting(chunk: Chunk) -> Array:
    """Which records count: not those that only say that a step has ended."""
    return np.asarray(chunk.columns["role"] != Role.STATE)
