"""Makes a group of the records that only one run has, so that what differs in them can be followed."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from determinism.comparison.align import Pairing
from determinism.comparison.canonical import Canonical
from determinism.comparison.differences import Flags, compare_rows, ragged_differs
from determinism.comparison.fingerprints import Produced, fingerprints, given, input_contents
from determinism.comparison.group import Group
from determinism.comparison.partners import Partners, Sides, producers
from determinism.comparison.received import Pair
from determinism.comparison.unmatched import Unmatched
from determinism.trace.chunk import Array, Chunk
from determinism.types import Access

_EXTERNAL = -1


@dataclass(frozen=True)
class ContentGroup(Group):
    """Records that were paired by what they did; an input is known by what its producer left there."""

    contents: tuple[Array, Array]
    """Per side and input entry a number that stands for that; -1 for external."""
    second_keys: Keys
    is_unordered: ClassVar[bool] = True

    def reads(self, side: int) -> list[tuple[int, int]]:
        """Per input entry of a side: what it held, and the view."""
        views = self.layouts_first if side == 0 else self.layouts_second
        return list(zip(self.contents[side].tolist(), views.tolist(), strict=True))


class Keys(NamedTuple):
    """The keys that both runs share for records of the second run."""

    numbers: Array
    keys: Array

    def of(self, numbers: Array) -> Array:
        """Keys of records; -1 stays -1, and what was not picked has a key that nothing else has."""
        found = np.where(numbers < 0, -1, -2 - numbers)
        if len(self.numbers):
            at = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
            found = np.where(self.numbers[at] == numbers, self.keys[at], found)
        return np.asarray(found)

    def key(self, number: int) -> int:
        """Key of one record."""
        return int(self.of(np.array([number]))[0])


def paired(
    found: Unmatched, processes: Sides, canonical: Canonical, *, across: bool, received: Set[Pair]
) -> ContentGroup:
    """Pair the records that only one run has.

    Args:
        found: The records.
        processes: What they were picked from.
        canonical: Numbers for names.
        across: Whether records of different streams may pair, where work goes to whoever is free.
        received: Values that other streams received from these: their makers pair first.
    """
    chunks = (found.first, found.second)
    contents = [input_contents(chunk, Produced(process)) for chunk, process in zip(chunks, processes, strict=True)]
    prints = [fingerprints(chunk, contents[side][1], canonical, side) for side, chunk in enumerate(chunks)]
    outside = [given(chunk, held) for chunk, (_, held) in zip(chunks, contents, strict=True)]
    partners = Partners(chunks, processes, canonical, prints, outside)
    pairing = partners.pairing(across=across, received=received)
    keys = -2 - _numbers(chunks[1], pairing.second)
    keys = np.where(pairing.first >= 0, _numbers(chunks[0], pairing.first), keys)
    there = pairing.second >= 0
    order = np.argsort(pairing.second[there])
    second_keys = Keys(chunks[1].numbers, keys[there][order])
    known = [_numbers_of_contents(chunk, left) for chunk, (left, _) in zip(chunks, contents, strict=True)]
    flags = _flags(chunks, pairing, canonical, (known[0], known[1]))
    views = [canonical.layouts[side][chunk.children["inputs"].columns["layout"]] for side, chunk in enumerate(chunks)]
    sources = (producers(chunks[0]), second_keys.of(producers(chunks[1])))
    return ContentGroup(
        *chunks,
        pairing,
        keys,
        flags,
        *sources,
        views[0],
        views[1],
        contents=(known[0], known[1]),
        second_keys=second_keys,
    )


def _numbers(chunk: Chunk, rows: Array) -> Array:
    """Numbers of the records at these positions; anything for position -1."""
    return chunk.numbers[rows] if chunk.rows else np.zeros(len(rows), dtype=np.int64)


def _flags(chunks: tuple[Chunk, Chunk], pairing: Pairing, canonical: Canonical, contents: tuple[Array, Array]) -> Flags:
    """Like those of paired records in order, but an input is another one only if its producer left something else."""
    pairs = np.flatnonzero((pairing.first >= 0) & (pairing.second >= 0))
    rows = (pairing.first[pairs], pairing.second[pairs])
    found = compare_rows(*chunks, *rows, canonical, *contents)
    inputs = [chunk.children["inputs"] for chunk in chunks]
    layouts = [canonical.layouts[side][of_side.columns["layout"]] for side, of_side in enumerate(inputs)]
    accesses = [of_side.columns["access"] for of_side in inputs]
    edges = ragged_differs(
        inputs[0], inputs[1], *rows, [(contents[0], contents[1]), (accesses[0], accesses[1]), (layouts[0], layouts[1])]
    )

    def spread(values: Array) -> Array:
        whole = np.zeros(len(pairing.first), dtype=bool)
        whole[pairs] = values
        return whole

    parts = (found.outputs, edges, found.digests, found.arguments, found.generators)
    return Flags(*(spread(part) for part in parts))


def _numbers_of_contents(chunk: Chunk, left: Array) -> Array:
    """One number per input entry for what its producer left; what lay in memory that is only written into is no matter."""
    inputs = chunk.children["inputs"]
    mixed = (left[:, 0] ^ (left[:, 1] << np.uint64(1))).view(np.int64)
    mixed = np.where(inputs.columns["access"] == Access.READ, mixed, 0)
    return np.where(inputs.columns["producer"] == 0, _EXTERNAL, mixed)
