"""The digest for tensors on a GPU: checked against a second implementation of its definition and on data that it must distinguish."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from determinism.device_digest import FIRST_STEP, KEYS, SECOND_STEP, TILE_BYTES, mix, mix_number, reference_digest

MODULUS = 1 << 64


def signed(value: int, bits: int = 32) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def digest_by_hand(data: bytes) -> bytes:
    """A second implementation of the definition, half by half, with only Python's integers."""
    keys = [int(key) for key in KEYS]
    filled = data + bytes(-len(data) % TILE_BYTES)
    halves = struct.unpack(f"<{len(filled) // 4}i", filled)
    sums = [mix_number((len(data) + step) % MODULUS) for step in (SECOND_STEP, FIRST_STEP)]
    for tile in range(len(filled) // TILE_BYTES):
        for lane in range(128):
            number = 128 * tile + lane + 1
            for which, step in enumerate((FIRST_STEP, SECOND_STEP)):
                total = 0
                for i in range(16):
                    row, word = divmod(i, 2)
                    at = 4096 * tile + 512 * row + 4 * lane + 2 * word
                    low = signed(halves[at] + keys[2 * i + 2 * which])
                    high = signed(halves[at + 1] + keys[2 * i + 1 + 2 * which])
                    total += low * high
                sums[which] += mix_number((total + number * step) % MODULUS)
    return struct.pack("<QQ", *(total % MODULUS for total in sums))


def pattern(length: int) -> bytes:
    return bytes((7 * i + i // 251) % 256 for i in range(length))


KNOWN = {
    0: "101bedfa80b40982afcd1d7b39a820e2",
    1: "36cb4ebb5448ee21306ef7465117b3a9",
    8: "2ecc4df18a7abc74bde9767034970eca",
    1000: "319c7b4138cc4881fc5734899d15c30d",
    TILE_BYTES: "b2691ab95a0468858192b9045af11ba5",
    3 * TILE_BYTES + 13: "4f97e0c53263555e74168caf63f8a93a",
}
"""Digests of `pattern(length)`, which no version may change without renaming the algorithm."""


@pytest.mark.parametrize("length", KNOWN)
def test_known_bytes_have_known_digests(length: int) -> None:
    assert reference_digest(pattern(length)).hex() == KNOWN[length]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 4095, TILE_BYTES, TILE_BYTES + 1, 2 * TILE_BYTES + 4099])
def test_the_reference_matches_the_definition(length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    assert reference_digest(data) == digest_by_hand(data)


def test_bytes_beyond_the_first_block_count() -> None:
    data = bytearray(70 * TILE_BYTES)
    before = reference_digest(data)
    data[-1] = 1
    assert reference_digest(data) != before


def test_every_flipped_bit_is_detected_even_if_a_half_cancels_its_key() -> None:
    """A half that equals its negated key makes one product zero whatever the other half is; the second sum detects it."""
    data = np.zeros(TILE_BYTES // 4, "<i4")
    data[0], data[1] = -KEYS[0], -KEYS[1]
    before = reference_digest(data.tobytes())
    for half in (0, 1):
        for bit in range(32):
            changed = data.copy()
            changed[half] ^= np.int32(-(1 << 31) if bit == 31 else 1 << bit)
            assert reference_digest(changed.tobytes()) != before


def test_trailing_zeros_and_empty_data_have_their_own_digests() -> None:
    digests = {reference_digest(bytes(length)) for length in range(300)}
    assert len(digests) == 300
    assert bytes(16) not in digests


def test_all_keys_differ() -> None:
    assert len(set(KEYS.tolist())) == len(KEYS)


def test_mixing_an_array_mixes_each_number() -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 63, 100, dtype=np.uint64)
    assert mix(numbers).tolist() == [mix_number(int(number)) for number in numbers]
