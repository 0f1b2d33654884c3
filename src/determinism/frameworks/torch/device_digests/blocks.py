"""Cuts tensors into blocks of memory that hold their bytes in the order of a digest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from determinism.device_digest import TILE_BYTES
from determinism.frameworks.torch.tensor_bytes import is_block

# That of the class is watched: the program's own calls of it are recorded.
_data_pointer = torch._C.TensorBase.data_ptr

MOST_COPIED = 32 << 20
"""Of tensors with gaps, or in another order than their memory, so many bytes are copied at once, on their own device."""
MOST_BLOCKS = 160
"""A tensor that must be copied is never cut into more parts."""


class Block(NamedTuple):
    """Consecutive bytes of a tensor."""

    memory: torch.Tensor
    """What keeps the memory alive until the kernel is queued."""
    address: int
    length: int
    first_tile: int
    """How many tiles of the tensor come before."""
    total: int
    """Bytes of the whole tensor."""


def whole_block(tensor: torch.Tensor) -> Block | None:
    """The bytes of a tensor as one block, copied if they do not lie so; None if it is too large to copy at once."""
    length = tensor.nbytes
    if not is_block(tensor):
        if length > MOST_COPIED:
            return None
        tensor = tensor.contiguous()
    return Block(tensor, _data_pointer(tensor), length, 0, length)


def staged_blocks(tensor: torch.Tensor) -> Iterator[Block]:
    """The bytes of a tensor as blocks that one after the other lie in the same memory.

    Each must have been queued to be digested before the next one is asked for; the order of the stream does the rest.
    """
    total = tensor.nbytes
    part_bytes = max(MOST_COPIED // 2, total // (MOST_BLOCKS // 2))
    stage = torch.empty(2 * part_bytes + TILE_BYTES, dtype=torch.uint8, device=tensor.device)
    filled = first_tile = 0
    for part in _parts(tensor, part_bytes):
        end = filled + part.nbytes
        stage[filled:end].view(tensor.dtype).view(part.shape).copy_(part)
        filled = end
        if filled >= part_bytes:
            whole = filled // TILE_BYTES * TILE_BYTES
            yield Block(stage, _data_pointer(stage), whole, first_tile, total)
            first_tile += whole // TILE_BYTES
            filled -= whole
            stage[:filled].copy_(stage[whole:end].clone())
    if filled:
        yield Block(stage, _data_pointer(stage), filled, first_tile, total)


def _parts(tensor: torch.Tensor, most_bytes: int) -> Iterator[torch.Tensor]:
    """Parts of a tensor in the order of its indices, none larger than asked for."""
    if tensor.nbytes <= most_bytes:
        yield tensor
        return
    axis = next(axis for axis, size in enumerate(tensor.shape) if size > 1)
    size = tensor.shape[axis]
    step = max(1, most_bytes // (tensor.nbytes // size))
    for start in range(0, size, step):
        yield from _parts(tensor.narrow(axis, start, min(step, size - start)), most_bytes)
