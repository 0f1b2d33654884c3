"""Puts memory at other addresses, with other alignments, in each run."""

from __future__ import annotations

import ctypes
import mmap

_PAGE = mmap.PAGESIZE
_SMALL = range(16, 4096, 16)
_kept: list[object] = []


def stir(number: int) -> None:
    """Take blocks of many sizes first, some of which are given back, so that later ones come to lie elsewhere.

    Args:
        number: Of the run; what is taken depends on it.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(size) for size in _SMALL for _ in range(1 + number % 5)]
    for position, block in enumerate(blocks):
        if (position * (number + 2) + number) % 3:
            libc.free(block)
    _kept.append(mmap.mmap(-1, _PAGE * (1 + number % 61)))
