"""Pairs of contents that differ in a structured way, for the fuzz of the digest of tensors on a GPU.

A pair is two lanes of 16 words (see `determinism.device_digest`) of one tensor, before a change and after it; all other lanes
are the same in both. The kinds of changes are those that simpler sums do not see: additions that cancel out, swapped elements,
signs flipped in pairs, moved blocks of zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from determinism.device_digest import LANES, TILE_BYTES

Array = np.ndarray[Any, Any]
Random = np.random.Generator
NEAR = 2 * LANES
"""As many lanes as two tiles have, small enough to check with whole tensors."""


class Pairs(NamedTuple):
    """Many pairs of contents of two lanes."""

    numbers: Array
    """The numbers of both lanes: uint64 of shape (pairs, 2)."""
    before: Array
    """Their contents before the change: int32 of shape (pairs, 2, 16 words, 2 halves)."""
    after: Array
    """Their contents after it."""
    lengths: Array
    """Bytes of the tensor before the change: uint64."""
    shorter: Array
    """How many of them the change removes: uint64."""


def contents(random: Random, count: int) -> Array:
    """The contents of lanes: random bits, floats of several types, small integers, zeros, ones."""
    shape = (count, 2, 16, 2)
    kind = random.integers(6)
    if kind == 0:
        return random.integers(-(1 << 31), 1 << 31, shape, dtype=np.int32)
    if kind == 1:
        return random.standard_normal(shape, dtype=np.float32).view(np.int32)
    if kind == 2:
        whole = random.standard_normal((count, 2, 32, 2), dtype=np.float32).view(np.uint32) >> np.uint32(16)
        return np.ascontiguousarray((whole[..., 0] | whole[..., 1] << np.uint32(16)).reshape(shape)).view(np.int32)
    if kind == 3:
        return random.integers(-3, 4, shape, dtype=np.int32)
    return np.full(shape, 0 if kind == 4 else 0x3F800000, np.int32)


def _places(random: Random, count: int, number: int) -> tuple[Array, Array]:
    """This many different halves of each pair: indices of pairs, and of halves among all 64 of both lanes."""
    first = random.integers(0, 64, (count, 1))
    apart = 1 + random.permuted(np.tile(np.arange(63), (min(count, 64), 1)), axis=1)[:, : number - 1]
    repeated = np.resize(apart, (count, number - 1))
    return np.arange(count)[:, None], np.concatenate([first, (first + repeated) % 64], axis=1)


def _flipped_bit(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 1)
    flat[rows, at] ^= np.int32(1) << random.integers(0, 32, at.shape, dtype=np.int32)


def _two_flipped_bits(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 2)
    flat[rows, at] ^= np.int32(1) << random.integers(0, 32, (len(flat), 1), dtype=np.int32)


def _two_signs(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 2)
    flat[rows, at] ^= np.int32(-(1 << 31))


def _swapped(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 2)
    flat[rows, at] = flat[rows, at[:, ::-1]]


def _swapped_halves(random: Random, flat: Array) -> None:
    words = flat.reshape(len(flat), 32, 2)
    rows, at = np.arange(len(flat)), random.integers(0, 32, len(flat))
    words[rows, at] = words[rows, at][:, ::-1]


def _equal_and_opposite(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 2)
    change = random.integers(1, 1 << random.integers(1, 31), (len(flat), 1), dtype=np.int32)
    flat[rows, at] += np.concatenate([change, -change], axis=1)


def _there_and_back(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 3)
    flat[rows, at] += np.array([1, -2, 1], np.int32)


def _same_everywhere(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 4)
    flat[rows, at] = random.integers(-(1 << 31), 1 << 31, (len(flat), 1), dtype=np.int32)


def _doubled_and_halved(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 2)
    flat[rows, at] += np.array([1 << 23, -(1 << 23)], np.int32)


def _rolled(random: Random, flat: Array) -> None:
    flat[:] = np.roll(flat, int(random.integers(1, 64)), axis=1)


def _permuted(random: Random, flat: Array) -> None:
    flat[:] = flat[:, random.permutation(64)]


def _lanes_swapped(random: Random, flat: Array) -> None:
    flat[:] = flat.reshape(-1, 2, 32)[:, ::-1].reshape(-1, 64)


def _rows_rotated(random: Random, flat: Array) -> None:
    rows = flat.reshape(-1, 2, 8, 4)
    rows[:] = np.roll(rows, int(random.integers(1, 8)), axis=2)


def _zeros_moved(random: Random, flat: Array) -> None:
    """A lane of zeros and a filled one are swapped; `before` has them the other way round."""
    flat.reshape(-1, 2, 32)[:, 1] = flat.reshape(-1, 2, 32)[:, 0]
    flat.reshape(-1, 2, 32)[:, 0] = 0


def _words_replaced(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 3)
    flat[rows, at] = random.integers(-(1 << 31), 1 << 31, at.shape, dtype=np.int32)


def _negated(random: Random, flat: Array) -> None:
    flat ^= np.int32(-(1 << 31))


def _complemented(random: Random, flat: Array) -> None:
    rows, at = _places(random, len(flat), 2)
    flat[rows, at] = ~flat[rows, at]


CHANGES: dict[str, Callable[[Random, Array], None]] = {
    "one bit": _flipped_bit,
    "the same bit of two elements": _two_flipped_bits,
    "signs of two elements": _two_signs,
    "two elements swapped": _swapped,
    "halves of a word swapped": _swapped_halves,
    "equal and opposite changes": _equal_and_opposite,
    "plus one, minus two, plus one": _there_and_back,
    "four elements made equal": _same_everywhere,
    "one doubled, one halved": _doubled_and_halved,
    "rolled": _rolled,
    "permuted": _permuted,
    "lanes swapped": _lanes_swapped,
    "rows of lanes rotated": _rows_rotated,
    "zeros moved": _zeros_moved,
    "elements replaced": _words_replaced,
    "all signs": _negated,
    "bits of two elements inverted": _complemented,
    "end cut off": lambda random, flat: None,
}
"""The kinds of changes; each works on int32 of shape (pairs, 64)."""


def make_pairs(kind: str, random: Random, count: int, *, near: bool = False) -> Pairs:
    """Make pairs of one kind; in some nothing may have changed.

    Args:
        kind: One of `CHANGES`.
        random: The generator of contents and positions.
        count: How many pairs.
        near: Use only lanes of the first two tiles.
    """
    before = contents(random, count)
    if kind == "zeros moved":
        before[:, 1] = 0
    after = before.copy()
    CHANGES[kind](random, after.reshape(count, 64))
    shorter = np.zeros(count, np.uint64)
    if kind == "end cut off":
        # The last word of the tensor is the last of the second lane; the part that is cut off reads as zeros.
        cut = random.integers(1, 8, count)
        shorter[:] = cut
        last = before[:, 1, 15].copy().view(np.uint64)[:, 0]
        kept = (np.uint64(1) << (np.uint64(64) - np.uint64(8) * cut.astype(np.uint64))) - np.uint64(1)
        after[:, 1, 15] = (last & kept).view(np.int32).reshape(count, 2)
    numbers = _near_numbers(random, count) if near else _numbers(random, count)
    if kind == "end cut off":
        # The second lane is the last of its tile, and the tile the last of the tensor.
        numbers = np.sort(numbers, axis=1)
        numbers[:, 1] = numbers[:, 0] // np.uint64(LANES) * np.uint64(LANES) + np.uint64(LANES)
    lengths = (numbers.max(1) + np.uint64(LANES - 1)) // np.uint64(LANES) * np.uint64(TILE_BYTES)
    return Pairs(numbers, before, after, lengths, shorter)


def _near_numbers(random: Random, count: int) -> Array:
    first = random.integers(0, NEAR - 1, count, dtype=np.uint64)
    second = (first + random.integers(1, NEAR - 1, count, dtype=np.uint64)) % np.uint64(NEAR - 1)
    return np.stack([first, second], axis=1) + np.uint64(1)


def _numbers(random: Random, count: int) -> Array:
    """Numbers of two lanes, near each other and far apart, in small tensors and in some of terabytes."""
    first = random.integers(1, 1 << random.integers(2, 34), count, dtype=np.uint64)
    second = first + random.integers(1, 1 << random.integers(1, 34), count, dtype=np.uint64)
    return np.stack([first, second], axis=1)
