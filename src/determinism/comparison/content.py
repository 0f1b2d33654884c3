"""Pairs records by what they computed: the same work done in another order is the same work."""

from __future__ import annotations

import numpy as np

from determinism.comparison.align import Pairing, join, keys_of, repaired
from determinism.comparison.canonical import Canonical
from determinism.comparison.group import Group
from determinism.trace.chunk import Array, Chunk

_MOST_RECORDS = 1 << 18


def paired_by_content(group: Group, canonical: Canonical) -> Pairing | None:
    """Pair anew the records whose outputs differ, where the same op at the same place gave these outputs elsewhere.

    A loop over a set does the same work in another order: then each of its records has a partner with equal outputs,
    and only what depends on the order differs. What finds no such partner pairs by occurrence.

    Returns:
        The new pairing; None if nothing pairs by content.
    """
    paired = (group.pairing.first >= 0) & (group.pairing.second >= 0)
    differing = np.flatnonzero(paired & group.flags.outputs)
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
    """Two numbers per record that stand for the digests of its outputs, in order."""
    outputs = chunk.children["outputs"]
    digests = outputs.columns["digest"].view(np.int64)
    sums = np.zeros((chunk.rows, 2), dtype=np.int64)
    if len(digests):
        within = np.arange(len(digests)) - np.repeat(outputs.starts[:-1], np.diff(outputs.starts))
        owner = np.repeat(np.arange(chunk.rows), np.diff(outputs.starts))
        for column in (0, 1):
            np.add.at(sums[:, column], owner, digests[:, column] * (2 * within + 1))
    return sums
