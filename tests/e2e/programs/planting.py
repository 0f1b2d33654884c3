"""Differences for programs to plant: they really occur, in every second run or in every one."""

import ctypes
import os

import torch
from torch import Tensor


def passed_before() -> int:
    """Return how often this function was called before, in all runs in this folder."""
    with open("passed.log", "ab") as log:
        log.write(b".")
        log.flush()
        return log.tell() - 1


@torch.library.custom_op("lab::hand_on", mutates_args=())
def hand_on(tensor: Tensor) -> Tensor:
    """Return the same values, but with one bit flipped in every second run."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    if passed_before() % 2:
        result.view(-1)[:1].view(torch.uint8)[tensor.itemsize - 2] ^= 64
    return result


hand_on.register_autograd(lambda context, gradient: gradient)


def leave_garbage() -> None:
    """Leave bytes that differ in every run in the free blocks from which PyTorch takes the memory of small tensors."""
    library, size = ctypes.CDLL(None), 176  # glibc looks for this many bytes to find 64 at an aligned address.
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [library.malloc(size) for _ in range(512)]
    for block in blocks:
        ctypes.memmove(block, os.urandom(size), size)
    # Blocks between them stay in use, so that the free ones are not merged.
    for block in blocks[::2]:
        library.free(block)
