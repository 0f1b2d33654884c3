"""Follows differences to where they are read: a difference that nothing reads is dead.

Every record that differs without having received a difference is a *root*. A root spreads along the edges of the
dataflow. When a value of it escapes, or is held by a parameter, gradient, buffer or optimizer at the end of a step, the
root is live. The first live root in execution order is the first divergence. Memory that nobody wrote is *pending*:
copies and partial writes pass it on, and only a record that truly reads it can become a root.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np

from determinism.comparison.group import Group
from determinism.comparison.origins import Entry, Input, Origins, entry
from determinism.comparison.readers import Readers
from determinism.comparison.received import Pair, differing_reads
from determinism.comparison.roots import Aspects, Root
from determinism.comparison.taints import PENDING, Incoming, Sides, Taints
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import END_OP, LOAD_OP
from determinism.types import Role


class Flow:
    """Takes group after group and finds which roots are live."""

    def __init__(self, first: ProcessTrace, second: ProcessTrace, key_of: Callable[[int], int]) -> None:
        """Take the processes, and what gives the key that both runs share for a record of the second."""
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
        """The first root so far that other processes got, live or dead here."""
        self.shared: Root | None = None
        """The first root so far that was written where other processes may read it, live or dead here."""
        self.loaded: set[Pair] = set()
        """What was loaded from files and differs, until the first live root."""
        self._open: dict[int, Root] = {}
        self.early_roots: list[Root] = []
        """The first few roots, live or dead."""

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
        leaves = (roles == Role.ESCAPE) | (roles == Role.CHECKPOINT)
        unpaired = (group.pairing.first < 0) | (group.pairing.second < 0)
        starting = group.flags.outputs | group.flags.digests | unpaired | (leaves & group.flags.edges)
        return np.union1d(np.flatnonzero(starting), tainted)

    def _visit(self, group: Group, row: int) -> Iterator[int]:
        """Look at one record; yields the keys of records whose readers must be looked at too."""
        sides = self._entries(group, row)
        aspects = _aspects(group, row)
        incoming = self._taints.incoming(sides, is_equal=None not in sides and not aspects.outputs)
        roots = set(incoming.read) - {PENDING}
        is_extra = None in sides
        if aspects.generators and self._generator_root is not None:
            roots.add(self._generator_root)
        some = sides[0] or sides[1]
        assert some is not None
        if some.op == LOAD_OP:
            # It shows only when something reads it.
            self.loaded |= differing_reads(*sides)
            return
        carried = frozenset(t.root for t in incoming.carried)
        leaves_other = aspects.edges and some.role in (Role.ESCAPE, Role.CHECKPOINT) and not self._leaves_equal(sides)
        differs = aspects.outputs or aspects.digests or is_extra or leaves_other
        pending = False
        # The end of the program is no difference of its own: what one run did beyond the other's end is.
        is_end = is_extra and some.op == END_OP
        if differs and not is_end and not roots and not (carried - {PENDING}):
            pending = not is_extra and self._is_pending(sides, some, aspects, incoming)
            if not pending and self.live is None:
                roots.add(self._new_root(group, row, sides, aspects, incoming))
        self._reach_sinks(some, is_extra, roots)
        key = int(group.keys[row])
        # A draw that only one run makes, or makes of another size, moves the generator for those that follow.
        if (is_extra or (aspects.arguments and not aspects.generators)) and roots and self._has_generator(group, row):
            self._generator_root = min(roots if self._generator_root is None else roots | {self._generator_root})
        gives_other = aspects.outputs or is_extra
        own = {index for index in roots if index in self._open} | ({PENDING} if pending and gives_other else set())
        equal = _equal_outputs(sides) if some.takes_each_by_itself else ()
        if self._taints.spread(key, some, own, incoming, self._open, equal, differs=gives_other):
            yield key

    def _entries(self, group: Group, row: int) -> tuple[Entry | None, Entry | None]:
        at = (int(group.pairing.first[row]), int(group.pairing.second[row]))
        chunks = (group.first, group.second)
        first, second = (
            entry(process, chunk, position) if position >= 0 else None
            for process, chunk, position in zip(self._processes, chunks, at, strict=True)
        )
        return first, second

    def _holds_equal(self, sides: Sides, position: int) -> bool:
        """Whether an input is known to hold the same bits in both runs.

        An op that took several tensors in another order gave them in that order; which of its outputs a tensor is, is no
        difference of the tensor.
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
        """Whether what leaves the framework holds the same in both runs, though it is another output of its op."""
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
            starts = chunk.children["generators"].starts
            if at >= 0 and starts[at + 1] > starts[at] and chunk.columns["role"][at] == Role.OP:
                return True
        return False

    def _is_pending(
        self, sides: tuple[Entry | None, Entry | None], some: Entry, aspects: Aspects, incoming: Incoming
    ) -> bool:
        """Whether the record only moves memory that nobody wrote, or writes around it."""
        if aspects.digests or aspects.arguments or aspects.generators:
            return False
        if some.role is Role.ESCAPE and not some.outputs:
            return self._reads_unwritten(sides, incoming)
        if some.is_copy and self._reads_unwritten(sides, incoming):
            return True
        around = any(t.root == PENDING for t in incoming.carried) or self._any_unwritten(sides, "carries")
        return around and not self._reads_unwritten(sides, incoming)

    def _reads_unwritten(self, sides: tuple[Entry | None, Entry | None], incoming: Incoming) -> bool:
        return PENDING in incoming.read or self._any_unwritten(sides, "reads")

    def _any_unwritten(self, sides: tuple[Entry | None, Entry | None], which: str) -> bool:
        for one, origins in zip(sides, self._origins, strict=True):
            values: tuple[Input, ...] = getattr(one, which) if one is not None else ()
            if any(origins.is_unwritten(value) for value in values):
                return True
        return False

    def _allocation(self, first: Entry | None) -> int | None:
        """The record that allocated the unwritten memory that a record of the first run reads."""
        return None if first is None else self._origins[0].allocation_behind(first)

    def _new_root(
        self, group: Group, row: int, sides: tuple[Entry | None, Entry | None], aspects: Aspects, incoming: Incoming
    ) -> int:
        index = self.num_roots
        self.num_roots += 1
        unwritten = None not in sides and self._reads_unwritten(sides, incoming)
        allocation = self._allocation(sides[0]) if unwritten else None
        root = Root(index, group, row, *sides, aspects, unwritten, allocation, self._came_in(*sides))
        self._open[index] = root
        if len(self.early_roots) < 8:
            self.early_roots.append(root)
        return index

    def _came_in(self, first: Entry | None, second: Entry | None) -> bool:
        if first is None or second is None:
            return False
        pairs = zip(first.reads, second.reads, strict=False)
        return any(
            mine.digest and other.digest and mine.digest != other.digest and self._origins[0].came_in(mine)
            for mine, other in pairs
        )

    def _reach_sinks(self, some: Entry, is_extra: bool, roots: set[int]) -> None:
        """Roots that a sink receives are live."""
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
            # An extra look at values (logging by the clock) shows nothing of itself; an extra step does.
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

    def dead(self) -> tuple[int, list[Root]]:
        """How many roots nothing read, and the first of them."""
        live = self.live.index if self.live is not None else self.num_roots
        return live, [root for root in self.early_roots if root.index < live]


def _equal_outputs(sides: Sides) -> list[int]:
    """The places of outputs that are equal in both runs."""
    first, second = sides
    if first is None or second is None:
        return []
    pairs = enumerate(zip(first.outputs, second.outputs, strict=False))
    return [place for place, (mine, other) in pairs if any(mine.digest) and mine == other]


def _aspects(group: Group, row: int) -> Aspects:
    flags = group.flags
    return Aspects(
        *(
            bool(aspect[row])
            for aspect in (flags.outputs, flags.edges, flags.digests, flags.arguments, flags.generators)
        )
    )
