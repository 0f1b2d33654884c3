"""What a divergence received from other streams: values that nobody recorded making in its own."""

from __future__ import annotations

from typing import NamedTuple

from determinism.comparison.origins import Entry
from determinism.comparison.roots import Root
from determinism.types import Role

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
