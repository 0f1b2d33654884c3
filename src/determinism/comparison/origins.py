"""Single records by name, input and output; whether the memory that they read was ever written."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from determinism.trace.names import Layout, OpSemantics, semantics_of
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import INPUT_PATHS, Table
from determinism.trace.stream import Array, Chunk
from determinism.types import Access, Role

# Which elements of a storage a view covers.

_MOST_ELEMENTS = 1 << 26
_WIDTHS = {
    "bool": 1, "complex32": 4, "complex64": 8, "complex128": 16, "bfloat16": 2, "quint8": 1, "qint8": 1, "qint32": 4,
}  # fmt: skip


def element_bytes(dtype: str) -> int:
    """Bytes of one element."""
    if dtype in _WIDTHS:
        return _WIDTHS[dtype]
    digits = "".join(c for c in dtype.removeprefix("float8").removeprefix("float4") if c.isdigit())
    return max(1, int(digits) // 8) if digits and dtype.startswith(("float", "int", "uint")) and "_" not in dtype else 1


def covers_storage(layout: Layout) -> bool:
    """Whether a view without overlap fills its whole storage."""
    return layout.elements * element_bytes(layout.dtype) >= layout.storage_bytes and not _overlaps_itself(layout)


def _overlaps_itself(layout: Layout) -> bool:
    """Whether two indices may lead to one element."""
    extent = 0
    for stride, size in sorted(zip(layout.strides, layout.shape, strict=True)):
        if size > 1:
            if stride <= extent:
                return True
            extent += (size - 1) * stride
    return False


@lru_cache(maxsize=256)
def _mask(layout: Layout, length: int) -> Array:
    """One bool per byte of the storage."""
    width = element_bytes(layout.dtype)
    mask = np.zeros(max(1, -(-length // width)), dtype=bool)
    view = np.lib.stride_tricks.as_strided(
        mask[layout.offset :], layout.shape, tuple(stride * mask.itemsize for stride in layout.strides)
    )
    view[...] = True
    return np.repeat(mask, width)[:length]


@lru_cache(maxsize=4096)
def _bounds(layout: Layout) -> tuple[int, int]:
    """First byte, and the byte after the last one."""
    width = element_bytes(layout.dtype)
    if not layout.elements:
        return (0, 0)
    last = layout.offset + sum((size - 1) * stride for size, stride in zip(layout.shape, layout.strides, strict=True))
    return layout.offset * width, (last + 1) * width


def come_near(first: Layout, second: Layout) -> bool:
    """Whether the stretches of memory that two views of one storage lie in share a byte."""
    (low, high), (other_low, other_high) = _bounds(first), _bounds(second)
    return low < other_high and other_low < high


def _is_dense(layout: Layout) -> bool:
    """Whether a view fills the stretch of memory that it lies in."""
    low, high = _bounds(layout)
    return layout.elements * element_bytes(layout.dtype) == high - low and not _overlaps_itself(layout)


def overlap(first: Layout | None, second: Layout | None, covers: tuple[Layout, ...] = ()) -> bool:
    """Whether two views of one storage share an element that no cover hides; True where that cannot be told."""
    if first is None or second is None:
        return True
    if not come_near(first, second):
        return False
    high, other_high = _bounds(first)[1], _bounds(second)[1]
    covers = tuple(cover for cover in covers if come_near(cover, first) and come_near(cover, second))
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
    """Whether a view has elements that none of the others covers; False where that cannot be told."""
    if view is None or any(covers_storage(cover) for cover in covers):
        return False
    covers = [cover for cover in covers if come_near(cover, view)]
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
    op: str
    module: str | None
    arguments: str
    input_paths: tuple[str, ...]
    """Where each input is among the arguments of a function, as far as its record names them."""
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]

    @property
    def is_copy(self) -> bool:
        """Whether the op only moves values."""
        return OpSemantics.COPIES in semantics_of(self.op)

    @property
    def takes_each_by_itself(self) -> bool:
        """Whether the op does the same to each of several tensors, of which none has a part in what comes of the others."""
        return OpSemantics.TAKES_EACH_BY_ITSELF in semantics_of(self.op)

    @property
    def is_collective(self) -> bool:
        """Whether the op exchanges tensors with other processes; then its outputs were not there yet to be digested."""
        return OpSemantics.COLLECTIVE in semantics_of(self.op)

    @property
    def sends(self) -> bool:
        """Whether other processes get what the op read."""
        return OpSemantics.SENDS in semantics_of(self.op)

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
        return OpSemantics.ONLY_RECEIVES in semantics_of(self.op)

    @property
    def receives_from_any(self) -> bool:
        """Whether the op takes what whichever process sent first."""
        return OpSemantics.RECEIVES_FROM_ANY in semantics_of(self.op)

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


def entry_of(process: ProcessTrace, chunk: Chunk, row: int) -> Entry:
    """The record at a position of a chunk."""
    names = process.names
    columns = {name: int(cells[row]) for name, cells in chunk.columns.items()}
    number = chunk.number(row)
    inputs = chunk.children["inputs"]
    digests = chunk.children["input_digests"]
    held = {
        int(digests.columns["position"][at]): digests.columns["digest"][at].tobytes()
        for at in range(int(digests.starts[row]), int(digests.starts[row + 1]))
    }
    start = int(inputs.starts[row])
    found = []
    for at in range(start, int(inputs.starts[row + 1])):
        distance = int(inputs.columns["producer"][at])
        found.append(
            Input(
                number - distance if distance else -1,
                int(inputs.columns["output"][at]),
                Access(int(inputs.columns["access"][at])),
                names.layout(int(inputs.columns["layout"][at])),
                held.get(at - start),
            )
        )
    outputs = chunk.children["outputs"]
    made = tuple(
        Output(names.layout(int(outputs.columns["layout"][at])), outputs.columns["digest"][at].tobytes())
        for at in range(int(outputs.starts[row]), int(outputs.starts[row + 1]))
    )
    arguments, _, paths = (names.text(Table.ARGUMENTS, columns["arguments"]) or "").partition(INPUT_PATHS)
    return Entry(
        number, columns["step"], columns["phase"], Role(columns["role"]), names.text(Table.OP, columns["op"]) or "",
        names.text(Table.MODULE, columns["module"]), arguments, _paths_in(paths), tuple(found), made,
    )  # fmt: skip


def _paths_in(text: str) -> tuple[str, ...]:
    try:
        paths = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    return tuple(str(path) for path in paths) if isinstance(paths, list) else ()


class Origins:
    """Follows values of one process back to where they came from."""

    def __init__(self, process: ProcessTrace, differs: Callable[[int, int], bool]) -> None:
        """Take the process, and what tells whether an output of a record differs between the runs."""
        self._process = process
        self._differs = differs

    def entry(self, number: int) -> Entry:
        """One record by number; it must have been passed."""
        return entry_of(self._process, *self._process.record(number))

    def written(self, value: Input) -> Output | None:
        """The output that a value is part of; None where nobody recorded or digested it, or it lies elsewhere too."""
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

    def is_unwritten(self, value: Input) -> bool:
        """Whether a value holds memory that nobody wrote."""
        return self.unwritten_allocation(value) is not None

    def allocation_behind(self, one: Entry) -> int | None:
        """Number of the record that allocated unwritten memory which a record reads, itself or through copies of it."""
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
        """Number of the nearest record by which something that a record reads was received from whichever process sent first."""
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
        """Number of the record that allocated memory which a value holds and nobody wrote; None if there is none.

        The writes into the storage are followed back; what is left of the view when they reach the allocation was
        never written.
        """
        covers: list[Layout] = []
        at = value
        for _ in range(_MOST_WRITERS):
            if at.producer < 0:
                return None
            writer = self.entry(at.producer)
            if writer.is_collective:
                return None
            made = writer.outputs[at.output] if at.output < len(writer.outputs) else None
            if made is not None and not any(made.digest) and not writer.reads:
                return at.producer if leaves_uncovered(value.layout, covers) else None
            earlier = next(iter(writer.carries), None)
            if earlier is None:
                return None
            # Of a write to chosen elements only the equal result tells that nothing unwritten is left.
            if made is not None and made.layout is not None:
                if not (
                    OpSemantics.CHOOSES_ELEMENTS in semantics_of(writer.op) and self._differs(at.producer, at.output)
                ):
                    covers.append(made.layout)
            at = earlier
        return None


def only_moves(op: str, layout: Layout) -> bool:
    """Whether an op looks at shared memory anew, or is what copies the bytes of a storage into it."""
    semantics = semantics_of(op)
    copies_bytes = OpSemantics.COPIES_INTO in semantics and layout.dtype == "uint8" and len(layout.shape) == 1
    return copies_bytes or OpSemantics.REBINDS_STORAGE in semantics
