"""The kernel that digests many blocks of GPU memory in one launch; `determinism.device_digest` defines the digest.

Imported only where tensors on a GPU are recorded: it needs Triton. Its functions have no annotations, since Triton's
compiler resolves all annotations and knows only its own types.
"""

from __future__ import annotations

import triton
import triton.language as tl

from determinism import device_digest

COLUMNS = 6
"""Numbers in a row of the table of blocks: address, bytes, number of the first tile, slot, bytes of the whole tensor,
and padding, so that each row begins at a multiple of 16 bytes and one compiled kernel serves all."""

_COLUMNS = tl.constexpr(COLUMNS)
_FIRST_STEP = tl.constexpr(device_digest.FIRST_STEP)
_SECOND_STEP = tl.constexpr(device_digest.SECOND_STEP)
_FIRST_FACTOR = tl.constexpr(device_digest.FIRST_FACTOR)
_SECOND_FACTOR = tl.constexpr(device_digest.SECOND_FACTOR)
_TILE = tl.constexpr(device_digest.TILE_BYTES)
_ROWS = tl.constexpr(device_digest.ROWS)
_LANES = tl.constexpr(device_digest.LANES)


@triton.jit
def _mix(number):
    number = (number ^ (number >> 30)) * _FIRST_FACTOR
    number = (number ^ (number >> 27)) * _SECOND_FACTOR
    return number ^ (number >> 31)


@triton.jit
def _bytes_as_word(address, index, length, wanted):
    """Read the words with these numbers byte by byte; bytes beyond the end are zero."""
    pointer = address.to(tl.pointer_type(tl.uint8))
    at = index * 8
    word = tl.zeros(index.shape, tl.int64)
    for byte in tl.static_range(8):
        value = tl.load(pointer + at + byte, mask=wanted & (at + byte < length), other=0)
        word |= value.to(tl.int64) << (8 * byte)
    return word


@triton.jit
def _words(address, index, length, WIDTH: tl.constexpr):
    """Read the words with these numbers; bytes beyond the end are zero.

    Args:
        address: Address of the block.
        index: Numbers of the words, counted from there.
        length: Bytes of the block.
        WIDTH: Bytes read at once: 8 if the block begins at a multiple of 16, 4 if at a multiple of 4, else 1.
    """
    if WIDTH == 1:
        return _bytes_as_word(address, index, length, index * 8 < length)
    else:
        end = index * 8 + 8
        inside = end <= length
        if WIDTH == 8:
            word = tl.load(address.to(tl.pointer_type(tl.int64)) + index, mask=inside, other=0)
        else:
            halves = address.to(tl.pointer_type(tl.int32)) + index * 2
            low = tl.load(halves, mask=inside, other=0).to(tl.int64) & 0xFFFFFFFF
            word = low | (tl.load(halves + 1, mask=inside, other=0).to(tl.int64) << 32)
        return word | _bytes_as_word(address, index, length, (end > length) & (end - 8 < length))


@triton.jit
def _products(words, keys, row, SHIFT: tl.constexpr):
    """Compute what the words in one row of a tile add to their lanes' sums, with the keys shifted."""
    key = keys + 4 * row + 2 * tl.arange(0, 2) + SHIFT
    low = words.to(tl.int32) + tl.load(key)[None, :]
    high = (words >> 32).to(tl.int32) + tl.load(key + 1)[None, :]
    return low.to(tl.int64) * high.to(tl.int64)


@triton.jit
def _tile(address, length, tile, first_tile, keys, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
    """Compute what the lanes of one tile of a block add to both halves of a digest.

    Args:
        address: Address of the block.
        length: Bytes of the block.
        tile: Number of the tile within the block.
        first_tile: Number of the block's first tile within the tensor.
        keys: See `determinism_digest`.
        WIDTH: See `_words`.
        WHOLE: Whether the tile is complete and begins at a multiple of 16.
    """
    lane = tl.arange(0, _LANES)
    in_tile = lane[:, None] * 2 + tl.arange(0, 2)[None, :]
    first = tl.zeros((_LANES, 2), tl.int64)
    second = tl.zeros((_LANES, 2), tl.int64)
    if WHOLE:
        pointer = tl.multiple_of(address.to(tl.pointer_type(tl.int64)) + tile * (_TILE // 8), 16)
        for row in tl.static_range(_ROWS):
            words = tl.load(pointer + (in_tile + row * (_LANES * 2)))
            first += _products(words, keys, row, 0)
            second += _products(words, keys, row, 2)
    else:
        for row in range(_ROWS):
            words = _words(address, in_tile + row * (_LANES * 2) + tile * (_TILE // 8), length, WIDTH)
            first += _products(words, keys, row, 0)
            second += _products(words, keys, row, 2)
    number = (lane + 1 + (first_tile + tile) * _LANES).to(tl.uint64)
    return (
        _mix(tl.sum(first, 1).to(tl.uint64) + number * _FIRST_STEP),
        _mix(tl.sum(second, 1).to(tl.uint64) + number * _SECOND_STEP),
    )


@triton.jit
def _add_digest(address, length, first_tile, slot, total, keys, slots, AXIS: tl.constexpr):
    """Add the digest of one block to its slot; the programs along one axis of the grid share its tiles."""
    begin = tl.program_id(AXIS).to(tl.int64)
    programs = tl.num_programs(AXIS)
    tiles = (length + _TILE - 1) // _TILE
    if begin < tiles:
        first = tl.zeros((_LANES,), tl.uint64)
        second = tl.zeros((_LANES,), tl.uint64)
        if address % 16 == 0:
            whole = length // _TILE
            for tile in range(begin, whole, programs):
                a, b = _tile(address, length, tile, first_tile, keys, 8, True)
                first += a
                second += b
            if (whole < tiles) & (whole % programs == begin):
                a, b = _tile(address, length, whole, first_tile, keys, 8, False)
                first += a
                second += b
        elif address % 4 == 0:
            for tile in range(begin, tiles, programs):
                a, b = _tile(address, length, tile, first_tile, keys, 4, False)
                first += a
                second += b
        else:
            for tile in range(begin, tiles, programs):
                a, b = _tile(address, length, tile, first_tile, keys, 1, False)
                first += a
                second += b
        total_first, total_second = tl.sum(first, 0), tl.sum(second, 0)
        if (begin == 0) & (first_tile == 0):
            total_first += _mix(total.to(tl.uint64) + _SECOND_STEP)
            total_second += _mix(total.to(tl.uint64) + _FIRST_STEP)
        tl.atomic_add(slots + 2 * slot, total_first.to(tl.int64))
        tl.atomic_add(slots + 2 * slot + 1, total_second.to(tl.int64))


@triton.jit
def determinism_digest(table, keys, slots):
    """Add the digests of blocks of memory to slots, which hold zeros or what other parts of the same tensor added.

    The first axis of the grid counts the blocks; the programs along the second one share the tiles of a block.

    Args:
        table: int64, `COLUMNS` per block.
        keys: int32, `device_digest.KEYS`.
        slots: int64, two per slot.
    """
    row = table + tl.program_id(0) * _COLUMNS
    address, length, first_tile = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    _add_digest(address, length, first_tile, tl.load(row + 3), tl.load(row + 4), keys, slots, 1)


@triton.jit
def determinism_digest_one(address, length, first_tile, slot, total, keys, slots):
    """Add the digest of one block to a slot, as `determinism_digest` does for a row of its table.

    The programs along the first axis of the grid share the tiles. All numbers are int64.

    Args:
        address: Address of the block.
        length: Bytes of the block.
        first_tile: Number of the block's first tile within the tensor.
        slot: Number of the slot.
        total: Bytes of the whole tensor.
        keys: See `determinism_digest`.
        slots: See `determinism_digest`.
    """
    _add_digest(address, length, first_tile, slot, total, keys, slots, 0)
