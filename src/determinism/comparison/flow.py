"""Follows differences from the records that made them to their readers; one that nothing reads is dead.

Every record that differs without having received a difference is a *root*. A root spreads along the edges of the
dataflow. When one of its values escapes, or is held by a parameter, gradient, buffer or optimizer at the end of a step,
the root is live. The first live root in execution order is the first divergence. Unwritten memory is *pending*: copies
and partial writes pass it on, and only a record that computes with it can become a root.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

import numpy as np

from determinism.comparison.columns import Aspects, Group
from determinism.comparison.lockstep import LOOKS, Readers
from determinism.comparison.records import (
    Entry,
    Input,
    Origins,
    Pair,
    Root,
    differing_reads,
    entry_of,
    leaves_uncovered,
    overlap,
    spans_overlap,
)
from determinism.op_semantics import OpSemantics
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import END_OP, LOAD_OP, Layout
from determinism.types import Access, Role

_FIRST_ROOTS = 8


# Tracks where differences are in memory, and which records receive them by reading it.

_MOST_COVERS = 64
_MOST_TAINTS = 64
_MOST_ALLOCATIONS = 256


Sides = tuple[Entry | None, Entry | None]
"""A record in both runs; None where a run lacks it."""


class Taint(NamedTuple):
    """A difference in part of a storage."""

    layout: Layout | None
    root: int
    """Index of the root; -1 for unwritten memory."""
    covers: tuple[Layout, ...] = ()
    """Parts that were overwritten since."""


PENDING = -1


class Incoming(NamedTuple):
    """The differences that a record receives."""

    read: frozenset[int]
    carried: tuple[Taint, ...]


def receives(value: Input, taint: Taint, *, can_tell: bool) -> bool:
    """Whether reading a value receives a difference.

    A tensor is known to differ only as a whole. A record that reads part of it, and whose result shows every bit that it
    read, received no difference if that result is equal.

    Args:
        value: The value that is read.
        taint: The difference.
        can_tell: Whether the record's result is equal, and shows what it read.
    """
    if not overlap(taint.layout, value.layout, taint.covers):
        return False
    is_part = taint.layout is not None and value.layout is not None and leaves_uncovered(taint.layout, [value.layout])
    return not (can_tell and is_part)


class Taints:
    """Marks the outputs of records with the differences in them."""

    def __init__(self, key_of: Callable[[int], int], holds_equal: Callable[[Sides, int], bool]) -> None:
        """Start without marks.

        Args:
            key_of: Returns the key that both runs share for a record of the second.
            holds_equal: Whether an input of a record, by its position, is known to be equal in both runs.
        """
        self._key_of = key_of
        self._holds_equal = holds_equal
        self._marks: dict[tuple[int, int], tuple[Taint, ...]] = {}
        self.producers: set[int] = set()
        """Keys of the records with a marked output."""

    def __contains__(self, made: tuple[int, int]) -> bool:
        """Whether an output, given by the key of its record and its position, is marked."""
        return made in self._marks

    def items(self) -> Iterator[tuple[tuple[int, int], tuple[Taint, ...]]]:
        """Yield every marked output with its differences."""
        yield from self._marks.items()

    def roots_of(self, key: int, output: int) -> list[int]:
        """Return the indices of the roots that an output descends from and that are still followed."""
        return sorted(taint.root for taint in self._marks.get((key, output), ()) if taint.root != PENDING)

    def keep(self, followed: Container[int]) -> None:
        """Forget the differences of all roots but these."""
        kept = {}
        for made, taints in self._marks.items():
            left = tuple(taint for taint in taints if taint.root in followed)
            if left:
                kept[made] = left
        self._marks = kept
        self.producers = {key for key, _ in kept}

    def incoming(self, sides: Sides, *, is_equal: bool) -> Incoming:
        """Return what a record receives in both runs; `is_equal` says that its outputs are the same in both."""
        read: set[int] = set()
        carried: set[Taint] = set()
        for side, one in enumerate(sides):
            for position, value in enumerate(one.inputs if one is not None and not one.only_receives else ()):
                key = value.producer if side == 0 else self._key_of(value.producer)
                taints = self._marks.get((key, value.output), ())
                if not taints or self._holds_equal(sides, position):
                    continue
                for taint in taints:
                    if value.access is Access.CARRY:
                        carried.add(taint)
                    elif receives(value, taint, can_tell=is_equal and one is not None and one.shows_what_it_read):
                        read.add(taint.root)
        return Incoming(frozenset(read), tuple(carried))

    def spread(
        self,
        key: int,
        some: Entry,
        own: set[int],
        incoming: Incoming,
        followed: Container[int],
        equal: Container[int] = (),
        *,
        differs: bool,
    ) -> bool:
        """Mark the outputs of a record.

        Args:
            key: The record's key.
            some: The record, from either run.
            own: Roots whose difference is in all its outputs but those in `equal`; `PENDING` for unwritten memory.
            incoming: The differences it received, some of which may be outside of what it wrote.
            followed: The roots that still matter.
            equal: Outputs without the difference.
            differs: Whether its outputs differ between the runs.

        Returns:
            Whether anything is marked.
        """
        keeps = differs and OpSemantics.CHOOSES_ELEMENTS in some.op.semantics
        marked = False
        for output, made in enumerate(some.outputs):
            taints = set() if output in equal else {Taint(made.layout, root) for root in own}
            for taint in incoming.carried:
                if taint.root == PENDING or taint.root in followed:
                    left = _left(taint, made.layout, keeps=keeps)
                    if left is not None:
                        taints.add(left)
            if taints:
                self._marks[(key, output)] = tuple(taints) if len(taints) <= _MOST_TAINTS else _earliest(taints)
                self.producers.add(key)
                marked = True
        return marked


def _earliest(taints: set[Taint]) -> tuple[Taint, ...]:
    """Keep the differences of the first roots: in a long run, each value would descend from all earlier differences."""
    return tuple(sorted(taints, key=lambda taint: taint.root)[:_MOST_TAINTS])


def _left(taint: Taint, written: Layout | None, *, keeps: bool) -> Taint | None:
    """Return what is left of a difference in a storage after a write to part of it; None if nothing is.

    Args:
        taint: The difference.
        written: The part that was written.
        keeps: Whether elements of that part were kept, and it still differs.
    """
    if written is None or taint.layout is None or keeps or len(taint.covers) >= _MOST_COVERS:
        return taint
    if not spans_overlap(taint.layout, written):
        return taint
    covers = (*taint.covers, written)
    return taint._replace(covers=covers) if leaves_uncovered(taint.layout, list(covers)) else None


class Flow:
    """Takes group after group and finds which roots are live."""

    def __init__(self, first: ProcessTrace, second: ProcessTrace, key_of: Callable[[int], int]) -> None:
        """Take the processes, and a function that returns the key that both runs share for a record of the second."""
        self._processes = (first, second)
        self._key_of = key_of
        self._taints = Taints(key_of, self._holds_equal)
        self._origins = (
            Origins(first, lambda number, output: (number, output) in self._taints),
            Origins(second, lambda number, output: (key_of(number), output) in self._taints),
        )
        self._generator_root: int | None = None
        self.num_roots = 0
        self.live: Root | None = None
        """The first live root so far."""
        self.is_held = False
        """Whether it became live because the program held it at the end of a step."""
        self.sent: Root | None = None
        """The first root so far that was sent to other processes, live or dead here."""
        self.shared: Root | None = None
        """The first root so far that was written where other processes may read it, live or dead here."""
        self.loaded: set[Pair] = set()
        """Differing values that were loaded from files before the first live root."""
        self._open: dict[int, Root] = {}
        self.early_roots: list[Root] = []
        """The first few roots, live or dead."""
        self._allocations: deque[Root] = deque(maxlen=_MOST_ALLOCATIONS)
        """The last allocations whose size or type differs between the runs."""

    @property
    def is_settled(self) -> bool:
        """Whether no later record can change which root is the first live one."""
        return self.live is not None and not self._open

    def add(self, group: Group) -> None:
        """Follow the differences through one more group."""
        if self.is_settled:
            return
        readers = Readers(group)
        queue = [int(row) for row in self._starting_rows(group, readers)]
        heapq.heapify(queue)
        done = -1
        while queue and not self.is_settled:
            row = heapq.heappop(queue)
            if row <= done:
                continue
            done = row
            for key in self._visit(group, row):
                for reader in readers.of(key):
                    if reader > row:
                        heapq.heappush(queue, int(reader))

    def _starting_rows(self, group: Group, readers: Readers) -> np.ndarray:
        tainted = readers.of_any(self._taints.producers)
        if self.live is not None:
            return tainted
        roles = np.where(
            group.pairing.first >= 0,
            group.first.columns["role"][np.maximum(group.pairing.first, 0)] if group.first.rows else -1,
            group.second.columns["role"][np.maximum(group.pairing.second, 0)] if group.second.rows else -1,
        )
        leaves = np.isin(roles, LOOKS)
        starting = group.flags.outputs | group.flags.digests | ~group.pairing.are_pairs | (leaves & group.flags.edges)
        return np.union1d(np.flatnonzero(starting), tainted)

    def _visit(self, group: Group, row: int) -> Iterator[int]:
        """Look at one record; yield the keys of records whose readers must be looked at, too."""
        sides = self._entries(group, row)
        aspects = group.flags.at(row)
        incoming = self._taints.incoming(sides, is_equal=None not in sides and not aspects.outputs)
        roots = set(incoming.read) - {PENDING}
        is_extra = None in sides
        if aspects.generators and self._generator_root is not None:
            roots.add(self._generator_root)
        some = sides[0] or sides[1]
        assert some is not None
        if some.op == LOAD_OP:
            # A difference counts only once something reads it.
            self.loaded |= differing_reads(*sides)
            return
        carried = frozenset(t.root for t in incoming.carried)
        leaves_other = aspects.edges and some.role in LOOKS and not self._leaves_equal(sides)
        differs = aspects.outputs or aspects.digests or is_extra or leaves_other
        pending = False
        # The end of the program is not itself a difference: what one run did beyond the other's end is.
        is_end = is_extra and some.op == END_OP
        if differs and not is_end and not roots and not (carried - {PENDING}):
            pending = not is_extra and self._is_pending(sides, some, aspects, incoming)
            if not pending and self.live is None:
                roots.add(self._new_root(group, row, sides, aspects, incoming))
        self._reach_sinks(some, is_extra, roots)
        key = int(group.keys[row])
        # A draw that only one run makes, or whose size differs, shifts the generator for all later draws.
        if (is_extra or (aspects.arguments and not aspects.generators)) and roots and self._has_generator(group, row):
            self._generator_root = min(roots if self._generator_root is None else roots | {self._generator_root})
        gives_other = aspects.outputs or is_extra
        own = {index for index in roots if index in self._open} | ({PENDING} if pending and gives_other else set())
        equal = _equal_outputs(sides) if some.takes_each_by_itself else ()
        if self._taints.spread(key, some, own, incoming, self._open, equal, differs=gives_other):
            yield key

    def _entries(self, group: Group, row: int) -> Sides:
        at = (int(group.pairing.first[row]), int(group.pairing.second[row]))
        chunks = (group.first, group.second)
        first, second = (
            entry_of(process, chunk, position) if position >= 0 else None
            for process, chunk, position in zip(self._processes, chunks, at, strict=True)
        )
        return first, second

    def _holds_equal(self, sides: Sides, position: int) -> bool:
        """Whether an input is known to hold the same bits in both runs.

        An op that took several tensors in a different order also returned them in that order; the position of a tensor
        among the op's outputs is not a difference in the tensor.
        """
        first, second = sides
        if first is None or second is None or position >= min(len(first.inputs), len(second.inputs)):
            return False
        mine, other = first.inputs[position], second.inputs[position]
        if mine.digest is not None:
            return mine.digest == other.digest
        if mine.producer != self._key_of(other.producer) or mine.output == other.output or mine.layout != other.layout:
            return False
        written = self._origins[0].written(mine)
        return written is not None and written == self._origins[1].written(other)

    def _leaves_equal(self, sides: Sides) -> bool:
        """Whether what leaves the framework is equal in both runs, although it is a different output of its op."""
        first, second = sides
        if first is None or second is None or len(first.inputs) != len(second.inputs):
            return False
        places = range(len(first.inputs))
        return all(self._is_alike(first, second, at) or self._holds_equal(sides, at) for at in places)

    def _is_alike(self, first: Entry, second: Entry, position: int) -> bool:
        mine, other = first.inputs[position], second.inputs[position]
        return mine._replace(producer=0) == other._replace(producer=0) and mine.producer == self._key_of(other.producer)

    def _has_generator(self, group: Group, row: int) -> bool:
        for chunk, at in ((group.first, int(group.pairing.first[row])), (group.second, int(group.pairing.second[row]))):
            if at >= 0 and chunk.children["generators"].of(at) and chunk.columns["role"][at] == Role.OP:
                return True
        return False

    def _is_pending(self, sides: Sides, some: Entry, aspects: Aspects, incoming: Incoming) -> bool:
        """Whether the record only moves unwritten memory, or writes around it."""
        if aspects.digests or aspects.arguments or aspects.generators:
            return False
        if some.role is Role.ESCAPE and not some.outputs:
            return self._reads_unwritten(sides, incoming)
        if some.is_copy and self._reads_unwritten(sides, incoming):
            return True
        around = any(t.root == PENDING for t in incoming.carried) or self._any_unwritten(sides, "carries")
        return around and not self._reads_unwritten(sides, incoming)

    def _reads_unwritten(self, sides: Sides, incoming: Incoming) -> bool:
        return PENDING in incoming.read or self._any_unwritten(sides, "reads")

    def _any_unwritten(self, sides: Sides, which: str) -> bool:
        for one, origins in zip(sides, self._origins, strict=True):
            values: tuple[Input, ...] = getattr(one, which) if one is not None else ()
            if any(origins.is_unwritten(value) for value in values):
                return True
        return False

    def _new_root(self, group: Group, row: int, sides: Sides, aspects: Aspects, incoming: Incoming) -> int:
        index = self.num_roots
        self.num_roots += 1
        unwritten = None not in sides and self._reads_unwritten(sides, incoming)
        allocation = self._origins[0].allocation_behind(sides[0]) if unwritten and sides[0] is not None else None
        arrivals = list(self._arrivals(*sides))
        of_any = next((one.number for one in arrivals if one.receives_from_any), None)
        behind = None
        if aspects.edges and of_any is None and sides[0] is not None and len(self.early_roots) < _FIRST_ROOTS:
            behind = self._origins[0].arrival_behind(sides[0])
        came_in = bool(arrivals) or _receives_otherwise(*sides, aspects)
        exchanged = self._exchange(sides, aspects, arrivals) if came_in else None
        root = Root(index, group, row, *sides, aspects, unwritten, allocation, came_in, of_any, behind, exchanged)
        self._open[index] = root
        if len(self.early_roots) < _FIRST_ROOTS:
            self.early_roots.append(root)
        if _allocates(sides[0]) and _allocates(sides[1]):
            self._allocations.append(root)
        return index

    @property
    def origin(self) -> Root | None:
        """The first live root; if that only fills memory whose size differs, the root that allocated it."""
        live = self.live
        if live is None or live.is_extra or any(one is not None and one.reads for one in (live.first, live.second)):
            return live
        wanted = _layouts(live)
        if wanted[0] == wanted[1]:
            return live
        earlier = (root for root in reversed(self._allocations) if root.index < live.index)
        return next((root for root in earlier if _layouts(root) == wanted), live)

    def _arrivals(self, first: Entry | None, second: Entry | None) -> Iterator[Entry]:
        """Yield the records of the first run through which differing inputs arrived from another process."""
        if first is None or second is None:
            return
        for mine, other in zip(first.reads, second.reads, strict=False):
            if mine.digest and other.digest and mine.digest != other.digest and self._origins[0].came_in(mine):
                yield self._origins[0].entry(mine.producer)

    def _exchange(self, sides: Sides, aspects: Aspects, arrivals: list[Entry]) -> int | None:
        """Return the number of the collective that everything that differs came through, if this process gave it equal values."""
        first, second = sides
        if first is None or second is None or aspects.edges or aspects.arguments or aspects.generators:
            return None
        pairs = zip(first.reads, second.reads, strict=False)
        others = [mine for mine, other in pairs if mine.digest != other.digest and not self._origins[0].came_in(mine)]
        found = self._origins[0].collective_behind(arrivals[0] if arrivals else first)
        return None if found is None or others else found.number

    def _reach_sinks(self, some: Entry, is_extra: bool, roots: set[int]) -> None:
        """Mark the roots that a sink receives as live."""
        if roots and some.sends:
            self.sent = self._earlier(self.sent, min(roots))
        if roots and some.shares:
            self.shared = self._earlier(self.shared, min(roots))
        if some.role is not Role.STATE and not some.counts:
            return
        for index in sorted(roots):
            root = self._open.get(index)
            if root is None:
                continue
            # An extra look at values (time-based logging) shows nothing by itself; an extra step does.
            if is_extra and root.is_extra and some.role is not Role.STATE and some.role is not Role.LOSS:
                continue
            self.is_held = some.role is Role.STATE
            self._settle(root)

    def _earlier(self, known: Root | None, index: int) -> Root | None:
        return known if known is not None and known.index <= index else self._open.get(index, known)

    def _settle(self, root: Root) -> None:
        self.live = root
        for index in [i for i in self._open if i >= root.index]:
            del self._open[index]
        self._taints.keep({*self._open, PENDING} if self._open else ())

    def unread(self, most: int) -> dict[int, Root]:
        """Return the first roots, by index, that nothing in this process read; other processes may have."""
        return {index: self._open[index] for index in sorted(self._open)[:most]}

    def outputs_of(self, roots: Container[int]) -> dict[tuple[int, int], int]:
        """Return the outputs that descend from one of these roots, by record key and position, each with the earliest root."""
        found = {
            made: [index for index in self._taints.roots_of(*made) if index in roots]
            for made, _ in self._taints.items()
        }
        return {made: min(indices) for made, indices in found.items() if indices}

    def dead(self) -> tuple[int, list[Root]]:
        """Return how many roots nothing read, and the first of them."""
        live = self.live.index if self.live is not None else self.num_roots
        return live, [root for root in self.early_roots if root.index < live]


def _allocates(one: Entry | None) -> bool:
    """Whether a record allocates memory without writing to it."""
    return one is not None and not one.reads and bool(one.outputs) and not any(any(made.digest) for made in one.outputs)


def _receives_otherwise(first: Entry | None, second: Entry | None, aspects: Aspects) -> bool:
    """Whether a collective that was complete on return gave different results, although this process passed it equal values."""
    if first is None or second is None or not (first.is_collective and second.is_collective and aspects.outputs):
        return False
    taken = [[value.digest for value in one.reads] for one in (first, second)]
    return not (aspects.edges or aspects.digests or aspects.arguments) and taken[0] == taken[1]


def _layouts(root: Root) -> tuple[object, object]:
    """Return the shape, dtype and device of a root's first output, in both runs."""
    first, second = (
        one.outputs[0].layout if one is not None and one.outputs else None for one in (root.first, root.second)
    )
    return first and (first.shape, first.dtype, first.device), second and (second.shape, second.dtype, second.device)


def _equal_outputs(sides: Sides) -> list[int]:
    """Return the positions of the outputs that are equal in both runs."""
    first, second = sides
    if first is None or second is None:
        return []
    pairs = enumerate(zip(first.outputs, second.outputs, strict=False))
    return [place for place, (mine, other) in pairs if any(mine.digest) and mine == other]
