"""The digest of tensors on an accelerator, defined in plain integer arithmetic. Kernels are tested against this.

XXH3 reads bytes sequentially, which is slow on a GPU. This digest is a sum, so any number of threads may process any
parts of the bytes in any order, on any device, with the same result: addition of integers modulo 2**64 does not depend
on order. It covers the bytes of the elements and their number; not dtype, shape or strides.

Definition. The bytes are padded with zeros to whole *tiles* of 16,384 bytes. A tile has 8 rows of 128 *lanes* of 2
words of 8 bytes; a word is a low and a high half, each a signed 32-bit integer, little-endian. The 16 words of one lane
give

    first  = sum over i of (low[i] + KEYS[2 i])     * (high[i] + KEYS[2 i + 1])
    second = sum over i of (low[i] + KEYS[2 i + 2]) * (high[i] + KEYS[2 i + 3])

where i = 2 row + word, the additions within the brackets wrap to signed 32 bits, products are signed 64-bit, and sums
are modulo 2**64. Lane `l` of tile `t` has the number n = 128 t + l + 1. With `mix`, a bijection of 64-bit numbers,

    A = mix(length + SECOND_STEP) + sum over lanes of mix(first  + n FIRST_STEP)
    B = mix(length + FIRST_STEP)  + sum over lanes of mix(second + n SECOND_STEP)

modulo 2**64, and the digest is A followed by B, little-endian.

Detection. Tensors that differ in only one aligned group of 4 bytes (one float32, a flipped bit anywhere) always have
different digests: the two partners of that half cannot both be zero, since neighbouring keys differ, so `first` or
`second` of one lane differs, and `mix` preserves that. The same holds for tensors that differ only in zeros at the end.
Any other pair of tensors, unless constructed from the keys, shares a digest with a probability of about 2**-62: for
random keys, 2**-31 for each of `first` and `second` of a lane (the almost-universal hash NH with signed numbers and
shifted keys, from UMAC: Black, Halevi, Krawczyk, Krovetz and Rogaway, CRYPTO 1999), and about 2**-64 for each sum over
lanes, whose terms are scattered by the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014); the latter is
observed, not proven. The keys are public, so this does not protect against deliberate collisions.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

ALGORITHM = "nh-128/1"

ROWS = 8
LANES = 128
WORDS = 2
TILE_BYTES = ROWS * LANES * WORDS * 8

FIRST_STEP = 0x9E3779B97F4A7C15
SECOND_STEP = 0xD1B54A32D192ED03
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB

_ALL_BITS = (1 << 64) - 1
_TILES_AT_ONCE = 64


def mix_number(number: int) -> int:
    """Apply the finaliser of splitmix64: a bijection of the numbers below 2**64 that scatters neighbouring ones."""
    number = ((number ^ number >> 30) * FIRST_FACTOR) & _ALL_BITS
    number = ((number ^ number >> 27) * SECOND_FACTOR) & _ALL_BITS
    return number ^ number >> 31


KEYS = np.array([mix_number((i + 1) * FIRST_STEP & _ALL_BITS) >> 32 for i in range(34)], np.uint32).view(np.int32)
"""The upper halves of the output of splitmix64 for seed 0."""


def mix(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Apply `mix_number` to each element of a uint64 array."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(FIRST_FACTOR)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(SECOND_FACTOR)
    mixed: np.ndarray[Any, Any] = numbers ^ (numbers >> np.uint64(31))
    return mixed


def lane_sums(halves: np.ndarray[Any, Any], shift: int) -> np.ndarray[Any, Any]:
    """Return `first` (shift 0) or `second` (shift 2) of lanes.

    Args:
        halves: int32 of shape (..., 16, 2): the low and the high half of each word of a lane.
        shift: How far the keys are shifted.

    Returns:
        uint64 of shape (...).
    """
    keys = KEYS[shift : shift + 32].reshape(16, 2)
    keyed = (halves + keys).astype(np.int64)
    sums: np.ndarray[Any, Any] = (keyed[..., 0] * keyed[..., 1]).sum(-1).view(np.uint64)
    return sums


def scattered(sums: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
    """Return the terms in A or B of lanes with these sums and numbers (uint64)."""
    return mix(sums + numbers * np.uint64(step))


def reference_digest(data: bytes | bytearray | memoryview) -> bytes:
    """Return the 16-byte digest of bytes by its definition, which is slow."""
    raw = np.frombuffer(data, np.uint8)
    first = mix_number((raw.size + SECOND_STEP) & _ALL_BITS)
    second = mix_number((raw.size + FIRST_STEP) & _ALL_BITS)
    for start in range(0, raw.size, _TILES_AT_ONCE * TILE_BYTES):
        part = raw[start : start + _TILES_AT_ONCE * TILE_BYTES]
        tiles = -(-part.size // TILE_BYTES)
        filled = np.zeros(tiles * TILE_BYTES, np.uint8)
        filled[: part.size] = part
        halves = filled.view("<i4").reshape(tiles, ROWS, LANES, WORDS, 2).transpose(0, 2, 1, 3, 4)
        halves = halves.reshape(tiles * LANES, ROWS * WORDS, 2)
        numbers = np.arange(tiles * LANES, dtype=np.uint64) + np.uint64(start // TILE_BYTES * LANES + 1)
        first += int(scattered(lane_sums(halves, 0), numbers, FIRST_STEP).sum())
        second += int(scattered(lane_sums(halves, 2), numbers, SECOND_STEP).sum())
    return struct.pack("<QQ", first & _ALL_BITS, second & _ALL_BITS)
