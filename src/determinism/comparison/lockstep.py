"""Reads two processes side by side: skips what is equal, and hands out the rest step by step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from determinism.comparison.align import Pairing, align, crosses, repaired
from determinism.comparison.canonical import Canonical, are_same_cells
from determinism.comparison.content import paired_by_content
from determinism.comparison.crossing import looks_elsewhere
from determinism.comparison.differences import Flags, are_same, compare_rows, outputs_differ, producers, same_structure
from determinism.comparison.group import Group
from determinism.comparison.step_counts import StepCounts
from determinism.comparison.translation import Translation
from determinism.trace.chunk import Array, Chunk, cut
from determinism.trace.decoder import Decoder
from determinism.trace.portions import RecordReader
from determinism.trace.reader import ProcessTrace

_USUAL_STEP = 1 << 11
_LARGEST_GROUP = 1 << 21
_MOST_COUNTED_ALONE = 4_000_000
"""So many records are worth reading to know how many of them differ, and no more."""


class Lockstep:
    """Two processes read side by side."""

    def __init__(self, first: ProcessTrace, second: ProcessTrace, canonical: Canonical) -> None:
        self.canonical = canonical
        decoder = Decoder()
        self._readers = (first.reader(decoder), second.reader(decoder))
        self._has_steps = first.steps_by is not None or second.steps_by is not None
        """Whether anything but batches counts the steps: work on batches that came in another order may be the same work."""
        self.num_equal = 0
        """Records that were equal from the start, before anything differed."""
        self.counts = StepCounts()
        """Which steps these records belong to."""
        self.translation = Translation(0)
        self.pairs_by_content = True
        """Look for work done in another order; of no use once the first divergence is known."""

    def groups(self) -> Iterator[Group]:
        """Everything from the first difference on; nothing if there is none."""
        if not self._skip_equal():
            return
        self.translation = Translation(self.num_equal)
        while (group := self._next_group()) is not None:
            yield group

    def count_on(self) -> None:
        """Count how many of the records that follow differ, once nothing else is to be learnt from them."""
        left = _MOST_COUNTED_ALONE
        while left > 0 and (portion := self._next_in_place(left) or self._next_aligned()) is not None:
            first, second, pairing = portion
            self.counts.add(first, second, pairing, outputs_differ(first, second, pairing, self.canonical))
            left -= len(pairing.first)

    def _next_in_place(self, most: int) -> tuple[Chunk, Chunk, Pairing] | None:
        """The next records that are the same ops at the same places, whatever they gave; None if the very next are not."""
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
        """Whether nothing differs; as long as nothing did, equal distances lead to the same producers."""
        distances = (chunk.children["inputs"].columns["producer"] for chunk in (first, second))
        return are_same(first, second, self.canonical) and are_same_cells(*distances)

    def _equal_rows(self, first: Chunk, second: Chunk) -> int:
        same = same_structure(first, second, self.canonical)
        rows = np.arange(first.rows)
        flags = compare_rows(first, second, rows, rows, self.canonical, producers(first), producers(second))
        unequal = ~same | flags.any()
        return int(np.argmax(unequal)) if unequal.any() else first.rows

    def _next_group(self) -> Group | None:
        chunks = self._next_chunks()
        return None if chunks is None else self._group(*chunks)

    def _next_chunks(self) -> tuple[Chunk, Chunk] | None:
        """The records of the next step of both runs; None if there are none."""
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
        """All records that are left, if they can be paired at once; else they go batch by batch, since runs of unlike length
        must not be cut at the same number.
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
        """The records of a step in which nothing differs; None if something does, or needs a closer look."""
        if first.rows != second.rows or not are_same(first, second, self.canonical):
            return None
        rows = np.arange(first.rows)
        keys = first.first + rows
        translation = self.translation.copy()
        translation.add(second.first, keys)
        sources = producers(first)
        if not np.array_equal(sources, translation.keys(producers(second))):
            return None
        self.translation = translation
        views = self.canonical.layouts.first[first.children["inputs"].columns["layout"]]
        return Group(first, second, Pairing(rows, rows), keys, Flags.none(first.rows), sources, sources, views, views)

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
            if crossing.any() and (apart := looks_elsewhere(trial, crossing)).any():
                nothing = np.zeros(0, dtype=np.int64)
                pairing = repaired(pairing, apart, nothing, nothing)
        return self._compare(first, second, pairing, self.translation)

    def _compare(self, first: Chunk, second: Chunk, pairing: Pairing, translation: Translation) -> Group:
        keys = np.where(pairing.first >= 0, first.first + pairing.first, -2 - (second.first + pairing.second))
        keys_of_second = np.full(second.rows, -1, dtype=np.int64)
        has_second = pairing.second >= 0
        keys_of_second[pairing.second[has_second]] = keys[has_second]
        translation.add(second.first, keys_of_second)
        sources = (producers(first), translation.keys(producers(second)))
        paired = np.flatnonzero((pairing.first >= 0) & has_second)
        found = compare_rows(
            first, second, pairing.first[paired], pairing.second[paired], self.canonical, sources[0], sources[1]
        )
        views = (
            self.canonical.layouts.first[first.children["inputs"].columns["layout"]],
            self.canonical.layouts.second[second.children["inputs"].columns["layout"]],
        )
        return Group(first, second, pairing, keys, _spread(found, paired, len(keys)), *sources, *views)


def _spread(flags: Flags, at: Array, length: int) -> Flags:
    def spread(values: Array) -> Array:
        whole = np.zeros(length, dtype=bool)
        whole[at] = values
        return whole

    return Flags(
        spread(flags.outputs),
        spread(flags.edges),
        spread(flags.digests),
        spread(flags.arguments),
        spread(flags.generators),
    )


def _rest_of_step(reader: RecordReader) -> Chunk | None:
    """The next records that belong to one step; of a huge step only a part."""
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
