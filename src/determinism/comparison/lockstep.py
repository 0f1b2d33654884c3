"""Reads two processes in lockstep: skips what is equal, and yields the rest step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from determinism.comparison.columns import (
    Canonical,
    Flags,
    Group,
    Pairing,
    RunPair,
    StepCounts,
    Translation,
    align,
    are_same,
    are_same_cells,
    compare_rows,
    crosses,
    generators_differ,
    join,
    keys_of,
    outputs_differ,
    producers,
    repaired,
    same_structure,
)
from determinism.trace.chunks import Array, Chunk, Decoder, RecordReader, cut
from determinism.trace.process import ProcessTrace
from determinism.types import Role

# Pairs records by what they computed: the same work done in a different order is the same work.

_MOST_RECORDS = 1 << 18


def paired_by_content(group: Group, canonical: Canonical) -> Pairing | None:
    """Re-pair the records whose outputs differ, where the same op at the same place has these outputs elsewhere.

    A loop over a set does the same work in a different order: then each of its records has a partner with equal outputs,
    and only results that depend on the order differ. Records without such a partner pair by occurrence.

    Returns:
        The new pairing; None if nothing pairs by content.
    """
    differing = np.flatnonzero(group.pairing.are_pairs & group.flags.outputs)
    if not 1 < len(differing) <= _MOST_RECORDS:
        return None
    rows = [np.sort(side[differing]) for side in (group.pairing.first, group.pairing.second)]
    keys = [keys_of(group.first, canonical, 0)[rows[0]], keys_of(group.second, canonical, 1)[rows[1]]]
    contents = [_content(group.first)[rows[0]], _content(group.second)[rows[1]]]
    left, right = join(*(np.concatenate([key, c], axis=1) for key, c in zip(keys, contents, strict=True)))
    if not len(left):
        return None
    rest = [np.setdiff1d(np.arange(len(differing)), used) for used in (left, right)]
    other_left, other_right = join(keys[0][rest[0]], keys[1][rest[1]])
    first = np.concatenate([rows[0][left], rows[0][rest[0]][other_left]])
    second = np.concatenate([rows[1][right], rows[1][rest[1]][other_right]])
    return repaired(group.pairing, differing, first, second)


def _content(chunk: Chunk) -> Array:
    """Return two numbers per record that represent the digests of its outputs, in order."""
    outputs = chunk.children["outputs"]
    digests = outputs.columns["digest"].view(np.int64)
    sums = np.zeros((chunk.rows, 2), dtype=np.int64)
    if len(digests):
        for column in (0, 1):
            np.add.at(sums[:, column], outputs.owners, digests[:, column] * (2 * outputs.places + 1))
    return sums


# Finds the records of a group that read what a record wrote.


class Readers:
    """An index from producers to the positions of their readers, for one group."""

    def __init__(self, group: Group) -> None:
        owners = [
            chunk.children["inputs"].spread(_positions(rows, chunk.rows))
            for chunk, rows in zip((group.first, group.second), group.pairing, strict=True)
        ]
        self._keys = np.concatenate(group.producers)
        self._owners = np.concatenate(owners)

    @cached_property
    def _by_key(self) -> tuple[Array, Array]:
        order = np.argsort(self._keys, kind="stable")
        return self._keys[order], self._owners[order]

    def of(self, key: int) -> Array:
        """Return the positions of the records that read from one producer."""
        keys, owners = self._by_key
        low, high = np.searchsorted(keys, [key, key + 1])
        return owners[low:high]

    def of_any(self, keys: set[int]) -> Array:
        """Return the positions of the records that read from any of several producers."""
        if not keys or not len(self._keys):
            return np.zeros(0, dtype=np.int64)
        wanted = np.fromiter(keys, dtype=np.int64, count=len(keys))
        return np.unique(self._owners[np.isin(self._keys, wanted)])


def _positions(rows: Array, count: int) -> Array:
    """Return the position in the group of each row of a chunk."""
    positions = np.zeros(count, dtype=np.int64)
    present = rows >= 0
    positions[rows[present]] = np.flatnonzero(present)
    return positions


# Finds false pairs: looks at values, such as time-based logging, that happen at a different moment in each run.

LOOKS = (Role.ESCAPE, Role.CHECKPOINT)
"""Roles of records that only look at a value or save it."""


def only_reads_elsewhere(group: Group, crossing: Array) -> Array:
    """Find pairs that are in a different order, read different records, and whose results only such looks receive.

    The n-th log line of one run is not the n-th of the other if it came at a different moment. Values that are used
    further, for instance by training, stay paired: there a different order is a difference.
    """
    apart = np.zeros(len(crossing), dtype=bool)
    suspects = _reading_others(group, np.flatnonzero(crossing & group.flags.outputs))
    if not suspects:
        return apart
    readers = Readers(group)
    roles = group.first.columns["role"]
    for at in reversed(suspects):
        if roles[group.pairing.first[at]] in LOOKS:
            apart[at] = True
            continue
        reading = readers.of(int(group.keys[at]))
        apart[at] = len(reading) > 0 and bool(apart[reading].all())
    return apart


def _reading_others(group: Group, candidates: Array) -> list[int]:
    """Return the candidates that read different records in each run, or the output of such a candidate."""
    inputs = group.first.children["inputs"]
    suspects: list[int] = []
    keys: set[int] = set()
    for at in candidates.tolist():
        row = int(group.pairing.first[at])
        read = group.producers.first[inputs.part(row)].tolist()
        if group.flags.edges[at] or not keys.isdisjoint(read):
            suspects.append(at)
            keys.add(int(group.keys[at]))
    return suspects


_USUAL_STEP = 1 << 11
_LARGEST_GROUP = 1 << 21
_MOST_COUNTED_ALONE = 4_000_000
"""The most records that are read only to count how many of them differ."""


class Lockstep:
    """Two processes read in lockstep."""

    def __init__(self, first: ProcessTrace, second: ProcessTrace, canonical: Canonical) -> None:
        self.canonical = canonical
        decoder = Decoder()
        self._readers = (first.reader(decoder), second.reader(decoder))
        self._has_steps = first.steps_by is not None or second.steps_by is not None
        """Whether steps are counted by anything but batches: work on batches in a different order may be the same work."""
        self.num_equal = 0
        """Records that were equal from the start, before anything differed."""
        self.counts = StepCounts()
        """How many records of each step were compared, and how many differ."""
        self.translation = Translation(0)
        self._differing_until = 0
        """The record of the first process up to which each step must be looked at by itself."""
        self.pairs_by_content = True
        """Whether to look for work done in a different order; useless once the first divergence is known."""

    def groups(self) -> Iterator[Group]:
        """Yield everything from the first difference on; nothing if there is none."""
        if not self._skip_equal():
            return
        self.translation = Translation(self.num_equal)
        while (group := self._next_group()) is not None:
            yield group

    def count_on(self) -> None:
        """Count how many of the remaining records differ, once nothing else can be learnt from them."""
        left = _MOST_COUNTED_ALONE
        while left > 0 and (portion := self._next_in_place(left) or self._next_aligned()) is not None:
            first, second, pairing = portion
            self.counts.add(first, second, pairing, outputs_differ(RunPair(first, second), pairing, self.canonical))
            left -= len(pairing.first)

    def _next_in_place(self, most: int) -> tuple[Chunk, Chunk, Pairing] | None:
        """Return the next records that are the same ops at the same places, whatever their outputs; None if there are none."""
        first, second = (reader.at_hand() for reader in self._readers)
        if first is None or second is None:
            return None
        rows = min(first.rows, second.rows, most)
        first, second = cut(first, 0, rows), cut(second, 0, rows)
        same = same_structure(first, second, self.canonical)
        rows = rows if same.all() else int(np.argmin(same))
        for reader in self._readers:
            reader.advance(rows)
        paired = np.arange(rows)
        return (cut(first, 0, rows), cut(second, 0, rows), Pairing(paired, paired)) if rows else None

    def _next_aligned(self) -> tuple[Chunk, Chunk, Pairing] | None:
        chunks = self._next_chunks()
        return None if chunks is None else (*chunks, align(*chunks, self.canonical))

    def _skip_equal(self) -> bool:
        """Move both sides to the first record that differs; False if there is none."""
        while True:
            first, second = (reader.at_hand() for reader in self._readers)
            if first is None and second is None:
                return False
            if first is None or second is None:
                return True
            rows = min(first.rows, second.rows)
            first, second = cut(first, 0, rows), cut(second, 0, rows)
            equal = rows if self._is_same(first, second) else self._equal_rows(first, second)
            self.counts.add_equal(cut(first, 0, equal))
            self._advance(equal)
            if equal < rows:
                return True

    def _advance(self, rows: int) -> None:
        self.num_equal += rows
        for reader in self._readers:
            reader.advance(rows)

    def _is_same(self, first: Chunk, second: Chunk) -> bool:
        """Whether nothing differs; while nothing has, equal distances mean the same producers."""
        distances = (chunk.children["inputs"].columns["producer"] for chunk in (first, second))
        return are_same(first, second, self.canonical) and are_same_cells(*distances)

    def _equal_rows(self, first: Chunk, second: Chunk) -> int:
        same = same_structure(first, second, self.canonical)
        rows = np.arange(first.rows)
        sources = RunPair(producers(first), producers(second))
        flags = compare_rows(RunPair(first, second), RunPair(rows, rows), self.canonical, sources)
        unequal = ~same | flags.any()
        return int(np.argmax(unequal)) if unequal.any() else first.rows

    def _next_group(self) -> Group | None:
        even = self._next_even_group()
        if even is not None:
            return even
        chunks = self._next_chunks()
        return None if chunks is None else self._group(*chunks)

    def _next_even_group(self) -> Group | None:
        """Return the records at hand, of however many steps, if only generator states differ; else None.

        In a program that does not seed Python's generator, it starts in a different state in each run. Most such programs never draw from
        it, and processing small steps one by one would cost much more.
        """
        first, second = (reader.at_hand() for reader in self._readers)
        if first is None or second is None or first.first < self._differing_until:
            return None
        rows = min(first.rows, second.rows)
        group = self._same_group(cut(first, 0, rows), cut(second, 0, rows))
        if group is None:
            self._differing_until = first.first + rows
            return None
        for reader in self._readers:
            reader.advance(rows)
        return group

    def _next_chunks(self) -> tuple[Chunk, Chunk] | None:
        """Return the records of the next step of both runs; None if there are none."""
        if not self._has_steps and (all_batches := self._all_batches()) is not None:
            return all_batches
        parts = [_rest_of_step(reader) for reader in self._readers]
        steps = [int(part.columns["step"][0]) for part in parts if part is not None]
        if not steps:
            return None
        step = min(steps)
        nothing = cut(next(part for part in parts if part is not None), 0, 0)
        chunks = [nothing, nothing]
        for side, (reader, part) in enumerate(zip(self._readers, parts, strict=True)):
            if part is not None and int(part.columns["step"][0]) == step:
                reader.advance(part.rows)
                chunks[side] = part
        return chunks[0], chunks[1]

    def _all_batches(self) -> tuple[Chunk, Chunk] | None:
        """Return all remaining records if they can be paired at once; else None, and they are paired batch by batch, since runs
        of different lengths must not be cut at the same number of records.
        """
        parts = [reader.peek(_LARGEST_GROUP) for reader in self._readers]
        some = next((part for part in parts if part is not None), None)
        if some is None or any(part is not None and part.rows >= _LARGEST_GROUP for part in parts):
            self._has_steps = True
            return None
        nothing = cut(some, 0, 0)
        for reader, part in zip(self._readers, parts, strict=True):
            reader.advance(0 if part is None else part.rows)
        first, second = (nothing if part is None else part for part in parts)
        return first, second

    def _same_group(self, first: Chunk, second: Chunk) -> Group | None:
        """Return a group in which only generator states differ; None if anything else does, or needs a closer look."""
        if first.rows != second.rows or not are_same(first, second, self.canonical, but_for=("generators",)):
            return None
        rows = np.arange(first.rows)
        keys = first.first + rows
        translation = self.translation.copy()
        translation.add(second.first, keys)
        sources = producers(first)
        if not np.array_equal(sources, translation.keys(producers(second))):
            return None
        self.translation = translation
        # The views are equal, too: both sides share one array, so they are looked up only once.
        views = self.canonical.layouts.first[first.children["inputs"].columns["layout"]]
        both = RunPair(sources, sources), RunPair(views, views)
        flags = replace(
            Flags.none(first.rows), generators=generators_differ(RunPair(first, second), RunPair(rows, rows))
        )
        return Group(first, second, Pairing(rows, rows), keys, flags, *both)

    def _group(self, first: Chunk, second: Chunk) -> Group:
        same = self._same_group(first, second)
        if same is not None:
            return same
        pairing = align(first, second, self.canonical)
        if self.pairs_by_content:
            trial = self._compare(first, second, pairing, self.translation.copy())
            again = paired_by_content(trial, self.canonical)
            if again is not None:
                pairing = again
                trial = self._compare(first, second, pairing, self.translation.copy())
            crossing = crosses(pairing)
            if crossing.any() and (apart := only_reads_elsewhere(trial, crossing)).any():
                nothing = np.zeros(0, dtype=np.int64)
                pairing = repaired(pairing, apart, nothing, nothing)
        return self._compare(first, second, pairing, self.translation)

    def _compare(self, first: Chunk, second: Chunk, pairing: Pairing, translation: Translation) -> Group:
        keys = np.where(pairing.first >= 0, first.first + pairing.first, -2 - (second.first + pairing.second))
        keys_of_second = np.full(second.rows, -1, dtype=np.int64)
        has_second = pairing.second >= 0
        keys_of_second[pairing.second[has_second]] = keys[has_second]
        translation.add(second.first, keys_of_second)
        chunks = RunPair(first, second)
        sources = RunPair(producers(first), translation.keys(producers(second)))
        paired = np.flatnonzero(pairing.are_pairs)
        rows = RunPair(pairing.first[paired], pairing.second[paired])
        flags = compare_rows(chunks, rows, self.canonical, sources).spread(paired, len(keys))
        return Group(first, second, pairing, keys, flags, sources, self.canonical.views(chunks))


def _rest_of_step(reader: RecordReader) -> Chunk | None:
    """Return the next records that belong to one step, or only part of a huge step."""
    rows = _USUAL_STEP
    while True:
        chunk = reader.peek(rows)
        if chunk is None:
            return None
        steps = chunk.columns["step"]
        other = np.flatnonzero(steps != steps[0])
        if len(other):
            return cut(chunk, 0, int(other[0]))
        if chunk.rows < rows or rows >= _LARGEST_GROUP:
            return chunk
        rows *= 2
