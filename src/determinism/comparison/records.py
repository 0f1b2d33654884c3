"""Records of two runs: single ones with their names resolved, groups of pairs, the roots where differences begin, and the origins of inputs.

An input's origin is looked up in its own process by storage and by the elements that a view covers (which also shows whether the memory that a
record read was ever written), and in all other processes by digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from determinism.comparison.columns import VALUE_SINKS, Aspects, Group, Named, held_by_position
from determinism.op_semantics import Op, OpSemantics
from determinism.trace.chunks import Array, Chunk
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import INPUT_PATHS, Layout, Table
from determinism.types import Access, Role


class Input(NamedTuple):
    """One input of a record."""

    producer: int
    """Number of the record that produced it; -1 if no recorded op did."""
    output: int
    access: Access
    layout: Layout | None
    digest: bytes | None
    """Digest of its content, where one was taken."""


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
    """The path of each input within the arguments of a function, where its record names them."""
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]

    @property
    def is_copy(self) -> bool:
        """Whether the op only moves values."""
        return OpSemantics.COPIES in self.op.semantics

    @property
    def takes_each_by_itself(self) -> bool:
        """Whether the op does the same to each of several tensors independently, as the `_foreach` ops do."""
        return OpSemantics.TAKES_EACH_BY_ITSELF in self.op.semantics

    @property
    def is_collective(self) -> bool:
        """Whether the op exchanges tensors with other processes; its outputs were then not yet complete when digests were taken."""
        return OpSemantics.COLLECTIVE in self.op.semantics

    @property
    def sends(self) -> bool:
        """Whether other processes receive what the op read."""
        return OpSemantics.SENDS in self.op.semantics

    @property
    def shares(self) -> bool:
        """Whether other processes may read its outputs directly from shared memory."""
        return any(
            made.layout is not None and made.layout.is_shared and not only_moves(self.op, made.layout)
            for made in self.outputs
        )

    @property
    def counts(self) -> bool:
        """Whether a difference that it reads matters: the value is looked at, saved, or becomes the loss."""
        return self.role in VALUE_SINKS

    @property
    def only_receives(self) -> bool:
        """Whether the op is given tensors only to fill them."""
        return OpSemantics.ONLY_RECEIVES in self.op.semantics

    @property
    def receives_from_any(self) -> bool:
        """Whether the op receives from whichever process sends first."""
        return OpSemantics.RECEIVES_FROM_ANY in self.op.semantics

    @property
    def shows_what_it_read(self) -> bool:
        """Whether equal results mean that the same bits were read."""
        return bool(self.outputs) and (self.is_copy or self.role in (Role.ESCAPE, Role.CHECKPOINT, Role.LOSS))

    @property
    def reads(self) -> tuple[Input, ...]:
        """The inputs whose content affects the result."""
        return tuple(i for i in self.inputs if i.access is Access.READ)

    @property
    def carries(self) -> tuple[Input, ...]:
        """The earlier content of memory that the op writes into."""
        return tuple(i for i in self.inputs if i.access is Access.CARRY)


def entry_of(process: Named, chunk: Chunk, row: int) -> Entry:
    """Return the record at a position in a chunk."""
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
    """Whether an op only binds a tensor to shared memory again, or copies the bytes of a storage into it."""
    semantics = op.semantics
    copies_bytes = OpSemantics.COPIES_INTO in semantics and layout.dtype == "uint8" and len(layout.shape) == 1
    return copies_bytes or OpSemantics.REBINDS_STORAGE in semantics


@dataclass(frozen=True)
class Root:
    """A record that differs although it received no difference."""

    index: int
    """Position among the roots, in execution order."""
    group: Group = field(repr=False)
    position: int
    """Within the group."""
    first: Entry | None
    second: Entry | None
    aspects: Aspects
    reads_unwritten: bool
    allocation: int | None
    """Record of the first run that allocated the unwritten memory that is read."""
    came_in: bool
    """Whether an input that differs arrived from another process, through a collective or a receive."""
    received_at: int | None = None
    """Record of the first run that received such an input from whichever process sent first."""
    received_behind: int | None = None
    """The same for a value that the input was computed from, rather than the input itself."""
    exchanged_at: int | None = None
    """The first run's record of the collective that everything that differs here came through, if this process gave it equal values."""

    @property
    def is_extra(self) -> bool:
        """Whether only one of the runs has the record."""
        return self.first is None or self.second is None


Pair = tuple[bytes, bytes]
"""Digests of one value in both runs."""


class Received(NamedTuple):
    """What came in from outside and differs between the runs."""

    pairs: frozenset[Pair] = frozenset()
    """Values, identified by digest: an input that no record of the stream made, or a tensor of a batch."""
    by_shared_memory: bool = False
    """Whether it was read from memory that processes share."""
    by_collective: bool = False
    """Whether it came through a collective or a receive, so sender and receiver may hold different values."""


NOTHING = Received()


def differing_reads(first: Entry | None, second: Entry | None) -> set[Pair]:
    """Return the digests that differ between what two records read."""
    if first is None or second is None:
        return set()
    reads = zip(first.reads, second.reads, strict=False)
    return {
        (mine.digest, other.digest)
        for mine, other in reads
        if mine.digest is not None and other.digest is not None and mine.digest != other.digest
    }


def received_by(root: Root) -> Received:
    """Return what a root got from outside."""
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
    is_of_op_alone = root.aspects.outputs and not any(root.aspects._replace(outputs=False))
    if is_of_op_alone and any(read.layout is not None and read.layout.is_shared for read in first.reads):
        # The input was equal when it was digested; the op read it later.
        by_shared_memory = True
    if first.role is Role.BATCH:
        pairs |= {(mine.digest, other.digest) for mine, other in zip(first.outputs, second.outputs, strict=False)}
    return Received(frozenset(pair for pair in pairs if pair[0] != pair[1]), by_shared_memory, root.came_in)


def _paths_in(text: str) -> tuple[str, ...]:
    try:
        paths = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    return tuple(str(path) for path in paths) if isinstance(paths, list) else ()


# The elements of a storage that a view covers.

_MOST_ELEMENTS = 1 << 26
_WIDTHS = {
    "bool": 1, "complex32": 4, "complex64": 8, "complex128": 16, "bfloat16": 2, "quint8": 1, "qint8": 1, "qint32": 4,
}  # fmt: skip


def element_bytes(dtype: str) -> int:
    """Return the size of one element in bytes."""
    if dtype in _WIDTHS:
        return _WIDTHS[dtype]
    digits = "".join(c for c in dtype.removeprefix("float8").removeprefix("float4") if c.isdigit())
    return max(1, int(digits) // 8) if digits and dtype.startswith(("float", "int", "uint")) and "_" not in dtype else 1


def covers_storage(layout: Layout) -> bool:
    """Whether a view without overlap fills its whole storage."""
    if not layout.is_view:
        return False
    return layout.elements * element_bytes(layout.dtype) >= layout.storage_bytes and not _overlaps_itself(layout)


def _overlaps_itself(layout: Layout) -> bool:
    """Whether two indices may address the same element."""
    extent = 0
    for stride, size in sorted(zip(layout.strides, layout.shape, strict=True)):
        if size > 1:
            if stride <= extent:
                return True
            extent += (size - 1) * stride
    return False


@lru_cache(maxsize=256)
def _mask(layout: Layout, length: int) -> Array:
    """Return one bool per byte of the storage: whether the view covers it."""
    width = element_bytes(layout.dtype)
    mask = np.zeros(max(1, -(-length // width)), dtype=bool)
    view = np.lib.stride_tricks.as_strided(
        mask[layout.offset :], layout.shape, tuple(stride * mask.itemsize for stride in layout.strides)
    )
    view[...] = True
    return np.repeat(mask, width)[:length]


@lru_cache(maxsize=4096)
def _bounds(layout: Layout) -> tuple[int, int]:
    """Return the first byte of a view and the one after its last."""
    width = element_bytes(layout.dtype)
    if not (layout.elements and layout.is_view):
        return (0, 0)
    last = layout.offset + sum((size - 1) * stride for size, stride in zip(layout.shape, layout.strides, strict=True))
    return layout.offset * width, (last + 1) * width


def spans_overlap(first: Layout, second: Layout) -> bool:
    """Whether the byte ranges of two views of one storage intersect."""
    (low, high), (other_low, other_high) = _bounds(first), _bounds(second)
    return low < other_high and other_low < high


def _is_dense(layout: Layout) -> bool:
    """Whether a view covers every byte of its range."""
    low, high = _bounds(layout)
    return layout.elements * element_bytes(layout.dtype) == high - low and not _overlaps_itself(layout)


def overlap(first: Layout | None, second: Layout | None, covers: tuple[Layout, ...] = ()) -> bool:
    """Whether two views of one storage share an element that no cover hides; True where that is unknown."""
    if first is None or second is None or not (first.is_view and second.is_view):
        return True
    if not spans_overlap(first, second):
        return False
    high, other_high = _bounds(first)[1], _bounds(second)[1]
    covers = tuple(cover for cover in covers if spans_overlap(cover, first) and spans_overlap(cover, second))
    if not covers and _is_dense(first) and _is_dense(second):
        return True
    length = max(high, other_high, *(_bounds(cover)[1] for cover in covers)) if covers else max(high, other_high)
    if length > _MOST_ELEMENTS:
        return True
    shared = _mask(first, length) & _mask(second, length)
    for cover in covers:
        shared &= ~_mask(cover, length)
    return bool(shared.any())


def leaves_uncovered(view: Layout | None, covers: list[Layout]) -> bool:
    """Whether a view has elements that none of the others covers; False where that is unknown."""
    if view is None or not view.is_view or any(covers_storage(cover) for cover in covers):
        return False
    covers = [cover for cover in covers if spans_overlap(cover, view)]
    if not covers:
        return view.elements > 0
    length = max([_bounds(view)[1], *(_bounds(cover)[1] for cover in covers)])
    if length > _MOST_ELEMENTS:
        return False
    left = _mask(view, length).copy()
    for cover in covers:
        left &= ~_mask(cover, length)
    return bool(left.any())


_MOST_WRITERS = 4096
_MOST_COPIES = 64


class Origins:
    """Follows values of one process back to their origins."""

    def __init__(self, process: ProcessTrace, differs: Callable[[int, int], bool]) -> None:
        """Take the process, and a function that says whether an output of a record differs between the runs."""
        self._process = process
        self._differs = differs

    def entry(self, number: int) -> Entry:
        """Return the record with this number."""
        return entry_of(self._process, *self._process.record(number))

    def written(self, value: Input) -> Output | None:
        """Return the output that a value is part of; None if it has no record or digest, or does not cover the whole value."""
        if value.producer < 0 or value.layout is None:
            return None
        outputs = self.entry(value.producer).outputs
        made = outputs[value.output] if value.output < len(outputs) else None
        if made is None or made.layout is None or not any(made.digest):
            return None
        return None if leaves_uncovered(value.layout, [made.layout]) else made

    def came_in(self, value: Input) -> bool:
        """Whether a value arrived from another process, through a collective or a receive."""
        return value.producer >= 0 and self.entry(value.producer).is_collective

    def collective_behind(self, one: Entry) -> Entry | None:
        """Return the collective that a record is or waits for; None if that only receives, since it was given nothing."""
        for _ in range(_MOST_WRITERS):
            if one.sends:
                return one
            if one.only_receives or not one.is_collective or not one.reads or one.reads[0].producer < 0:
                return None
            one = self.entry(one.reads[0].producer)
        return None

    def is_unwritten(self, value: Input) -> bool:
        """Whether a value includes memory that was never written."""
        return self.unwritten_allocation(value) is not None

    def allocation_behind(self, one: Entry) -> int | None:
        """Return the number of the record that allocated unwritten memory that a record reads, directly or through copies."""
        readers, seen = [one], 0
        while readers and seen < _MOST_COPIES:
            reader, seen = readers.pop(0), seen + 1
            for value in reader.reads:
                number = self.unwritten_allocation(value)
                if number is not None:
                    return number
                if value.producer >= 0 and (maker := self.entry(value.producer)).is_copy:
                    readers.append(maker)
        return None

    def arrival_behind(self, one: Entry) -> int | None:
        """Return the number of the nearest record behind a record's inputs that received from whichever process sent first."""
        readers, seen = [one], set[int]()
        while readers and len(seen) < _MOST_COPIES:
            for value in readers.pop(0).reads:
                if value.producer < 0 or value.producer in seen:
                    continue
                seen.add(value.producer)
                maker = self.entry(value.producer)
                if maker.receives_from_any:
                    return maker.number
                readers.append(maker)
        return None

    def unwritten_allocation(self, value: Input) -> int | None:
        """Return the number of the record that allocated memory that the value includes and nothing wrote; None if there is none.

        The writes to the storage are followed back; what is left of the view when the allocation is reached was never
        written. A tensor on the device `meta` has no memory.
        """
        if value.layout is not None and value.layout.device.partition(":")[0] == "meta":
            return None
        covers: list[Layout] = []
        at = value
        for _ in range(_MOST_WRITERS):
            if at.producer < 0:
                return None
            writer = self.entry(at.producer)
            if writer.is_collective:
                return None
            made = writer.outputs[at.output] if at.output < len(writer.outputs) else None
            # The outputs of ops captured in a CUDA graph have no digest either.
            if made is not None and not any(made.digest) and OpSemantics.LEAVES_UNWRITTEN in writer.op.semantics:
                return at.producer if leaves_uncovered(value.layout, covers) else None
            earlier = next(iter(writer.carries), None)
            if earlier is None:
                return None
            # After a write to chosen elements, only an equal result shows that nothing unwritten is left.
            if made is not None and made.layout is not None:
                if not (OpSemantics.CHOOSES_ELEMENTS in writer.op.semantics and self._differs(at.producer, at.output)):
                    covers.append(made.layout)
            at = earlier
        return None


def shares_unwritten_memory(process: ProcessTrace, last: int) -> bool:
    """Whether a process sent other processes memory that had never been written, up to a last step.

    Raises:
        TraceError: The trace is damaged.
    """
    origins = Origins(process, lambda number, output: False)
    sending = process.names.ops_that(OpSemantics.SENDS)
    for chunk in process.chunks() if len(sending) else ():
        rows = np.flatnonzero(np.isin(chunk.columns["op"], sending) & (chunk.columns["step"] <= last))
        if any(origins.is_unwritten(value) for row in rows.tolist() for value in entry_of(process, chunk, row).reads):
            return True
    return False


_MOST_LOOKED_AT = 2000


def read_unwritten(process: ProcessTrace) -> str | None:
    """Find the first op that computed with memory that was never written, or with a copy of it, and its line.

    Raises:
        TraceError: The trace is damaged.
    """
    origins = Origins(process, lambda number, output: False)
    copying = process.names.ops_that(OpSemantics.COPIES)
    # The buffers that a collective fills are recorded as read, since schemas do not mark them as written.
    collective = process.names.ops_that(OpSemantics.COLLECTIVE)
    unwritten = np.zeros(0, np.int64)
    """Records that leave memory partly or wholly unwritten, by a quick check."""
    num_looked_at = 0
    for chunk in process.chunks():
        inputs, outputs, op = chunk.children["inputs"], chunk.children["outputs"], chunk.columns["op"]
        numbers, distance, access = chunk.numbers, inputs.columns["producer"], inputs.columns["access"]
        producers = np.where(distance > 0, inputs.spread(numbers) - distance, -1)
        # Outputs with values have a digest.
        unwritten = np.union1d(unwritten, numbers[outputs.owners[~outputs.columns["digest"].any(axis=1)]])
        read, is_copy = access == Access.READ, np.isin(op, copying)
        passes_on = (access == Access.CARRY) | (read & inputs.spread(is_copy))
        while len(more := np.setdiff1d(_owners(chunk, passes_on & np.isin(producers, unwritten)), unwritten)):
            unwritten = np.union1d(unwritten, more)
        reads_unwritten = np.isin(numbers, _owners(chunk, read & np.isin(producers, unwritten)))
        may_read = reads_unwritten & ~is_copy & ~np.isin(op, collective)
        for row in np.flatnonzero(may_read & (chunk.columns["role"] == Role.OP)).tolist():
            entry = entry_of(process, chunk, row)
            if origins.allocation_behind(entry) is not None:
                frames = process.names.stack(int(chunk.columns["stack"][row]))
                return f"{entry.op} at {frames[0].file}:{frames[0].line}" if frames else str(entry.op)
            num_looked_at += 1
            if num_looked_at == _MOST_LOOKED_AT:
                return None
    return None


def _owners(chunk: Chunk, entries: Array) -> Array:
    """Return the numbers of the records that the chosen inputs belong to."""
    return np.unique(chunk.numbers[chunk.children["inputs"].owners[entries]])


_PLACES = ("outputs", "input_digests")


class Uses(NamedTuple):
    """What the ops of a stream did with a value, which is known by its digest."""

    made: bool
    """Whether one of them had it as an output."""
    taken: bool
    """Whether one of them got it as an input that no op of the stream had made."""
    written: bool
    """Whether one of them left it in a tensor that it changed in place."""


class DigestSearch:
    """Looks for digests in streams, and caches the results, since each search reads a whole stream."""

    def __init__(self) -> None:
        self._found: dict[ProcessTrace, dict[bytes, Uses]] = {}
        self._wanted: set[bytes] = set()

    def expect(self, digests: Iterable[bytes]) -> None:
        """Announce digests that will be looked for, so that a stream need not be read again for each."""
        self._wanted.update(digests)

    def of(self, process: ProcessTrace, digest: bytes) -> Uses:
        """Return what the ops of a stream did with a value.

        Raises:
            TraceError: The trace is damaged.
        """
        self._wanted.add(digest)
        known = self._found.setdefault(process, {})
        if digest not in known:
            unknown = self._wanted - known.keys()
            found = _found(process, unknown)
            known.update({one: Uses(*(one in there for there in found)) for one in unknown})
        return known[digest]


def _found(process: ProcessTrace, wanted: set[bytes]) -> tuple[set[bytes], ...]:
    """Return the digests found in each of `_PLACES`, and in the outputs of ops that change a tensor in place."""
    heads = heads_of(wanted)
    writing = process.names.ops_that(OpSemantics.IN_PLACE)
    made, taken, written = set[bytes](), set[bytes](), set[bytes]()
    for chunk in process.chunks():
        for place, there in zip(_PLACES, (made, taken), strict=True):
            digests = chunk.children[place].columns["digest"]
            there.update(row.tobytes() for row in digests[np.isin(digests[:, 0], heads)])
        outputs = chunk.children["outputs"]
        by_writing = outputs.spread(np.isin(chunk.columns["op"], writing))
        digests = outputs.columns["digest"][by_writing]
        written.update(row.tobytes() for row in digests[np.isin(digests[:, 0], heads)])
    return made & wanted, taken & wanted, written & wanted


def outputs_with(digests: Set[bytes], chunks: Iterable[Chunk]) -> dict[bytes, list[tuple[int, int]]]:
    """Return the outputs that have these digests, by digest: the numbers of their records, and their positions.

    Raises:
        TraceError: The trace is damaged.
    """
    heads, found = heads_of(digests), dict[bytes, list[tuple[int, int]]]()
    for chunk in chunks:
        outputs = chunk.children["outputs"]
        for row in np.unique(outputs.owners[np.isin(outputs.columns["digest"][:, 0], heads)]).tolist():
            for at, digest in enumerate(outputs.digests_of(row)):
                if digest in digests:
                    found.setdefault(digest, []).append((chunk.number(row), at))
    return found


def heads_of(digests: Set[bytes]) -> Array:
    """Return the first halves of digests, which nearly always suffice to rule a match out."""
    return np.frombuffer(b"".join(digest[:8] for digest in digests), dtype=np.uint64)
