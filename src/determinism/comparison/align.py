"""Pairs the records of one step of two runs: by op, module, place and occurrence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from determinism.comparison.canonical import Canonical
from determinism.comparison.differences import same_structure
from determinism.trace.chunk import Array, Chunk


class Pairing(NamedTuple):
    """Records of both sides in one order of execution; -1 where a side has no partner."""

    first: Array
    second: Array


def align(first: Chunk, second: Chunk, canonical: Canonical) -> Pairing:
    """Pair the records of one step.

    Records that come at the same position with the same op, module, phase and stack of user code pair at once. Where
    that breaks off, the n-th record of such a key pairs with the n-th of the same key on the other side.
    """
    common = min(first.rows, second.rows)
    equal = same_structure(_head(first, common), _head(second, common), canonical) if common else np.zeros(0, bool)
    if first.rows == second.rows and equal.all():
        rows = np.arange(common)
        return Pairing(rows, rows)
    prefix = common if equal.all() else int(np.argmin(equal))
    left, right = join(keys_of(first, canonical, 0)[prefix:], keys_of(second, canonical, 1)[prefix:])
    head = np.arange(prefix)
    return _in_order(
        first.rows, second.rows, np.concatenate([head, left + prefix]), np.concatenate([head, right + prefix])
    )


def crosses(pairing: Pairing) -> Array:
    """Which pairs stand before another pair in one run and after it in the other."""
    paired = np.flatnonzero((pairing.first >= 0) & (pairing.second >= 0))
    found = np.zeros(len(pairing.first), dtype=bool)
    partners = pairing.second[paired]
    if len(partners) > 1:
        latest_before = np.maximum.accumulate(partners)
        earliest_after = np.minimum.accumulate(partners[::-1])[::-1]
        found[paired] = (latest_before > partners) | (earliest_after < partners)
    return found


def repaired(pairing: Pairing, apart: Array, first: Array, second: Array) -> Pairing:
    """Take some pairs apart, and pair these rows instead.

    Args:
        pairing: As it is.
        apart: Positions or mask of the pairs that are taken apart.
        first: Rows of the first run that get another partner.
        second: Their partners.
    """
    kept = (pairing.first >= 0) & (pairing.second >= 0)
    kept[apart] = False
    rows = [int((side >= 0).sum()) for side in pairing]
    left = np.concatenate([pairing.first[kept], first])
    right = np.concatenate([pairing.second[kept], second])
    return _in_order(rows[0], rows[1], left, right)


def _head(chunk: Chunk, rows: int) -> Chunk:
    return Chunk(chunk.first, rows, {name: cells[:rows] for name, cells in chunk.columns.items()}, {})


def keys_of(chunk: Chunk, canonical: Canonical, side: int) -> Array:
    """One row of numbers per record: equal for the same op at the same place in both runs."""
    columns = [chunk.columns[name].astype(np.int64) for name in ("thread", "phase", "role")]
    for name, numbers in (("op", canonical.ops), ("module", canonical.modules), ("stack", canonical.stacks)):
        columns.append(numbers[side][chunk.columns[name]].astype(np.int64))
    return np.stack(columns, axis=1)


def join(first: Array, second: Array) -> tuple[Array, Array]:
    """Positions of the pairs with equal key and equal occurrence of the key."""
    both = np.concatenate([first, second])
    _, code = np.unique(both, axis=0, return_inverse=True)
    code = code.reshape(-1)
    codes = (code[: len(first)], code[len(first) :])
    labelled = (_with_occurrence(codes[0]), _with_occurrence(codes[1]))
    _, at_first, at_second = np.intersect1d(labelled[0], labelled[1], assume_unique=True, return_indices=True)
    order = np.argsort(at_first)
    return at_first[order], at_second[order]


def _with_occurrence(code: Array) -> Array:
    """A number that is unique per key and occurrence."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else np.zeros(0, int)
    counts = np.diff(np.concatenate([starts, [len(ordered)]]))
    occurrence = np.empty(len(code), dtype=np.int64)
    occurrence[order] = np.arange(len(code)) - np.repeat(starts, counts)
    return code.astype(np.int64) * (1 << 32) + occurrence


def _in_order(rows_first: int, rows_second: int, left: Array, right: Array) -> Pairing:
    """Put pairs and leftovers in one order: that of the first run, extra records of the second after their forerunner."""
    partner_of_second = np.full(rows_second, -1, dtype=np.int64)
    partner_of_second[right] = left
    partner_of_first = np.full(rows_first, -1, dtype=np.int64)
    partner_of_first[left] = right
    extra = np.flatnonzero(partner_of_second < 0)
    # A record that only the second run has comes after the latest partner of the records before it.
    reached = np.maximum.accumulate(partner_of_second) if rows_second else partner_of_second
    after = reached[extra]
    first = np.concatenate([np.arange(rows_first), np.full(len(extra), -1, dtype=np.int64)])
    second = np.concatenate([partner_of_first, extra])
    place = np.concatenate([np.arange(rows_first, dtype=np.float64), after + 0.5])
    tie = np.concatenate([np.zeros(rows_first, dtype=np.int64), extra])
    order = np.lexsort((tie, place))
    return Pairing(first[order], second[order])
