"""Which elements of a storage a view covers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from determinism.trace.chunk import Array
from determinism.trace.names import Layout

_MOST_ELEMENTS = 1 << 26
_WIDTHS = {
    "bool": 1, "complex32": 4, "complex64": 8, "complex128": 16, "bfloat16": 2, "quint8": 1, "qint8": 1, "qint32": 4,
}  # fmt: skip


def element_bytes(dtype: str) -> int:
    """Bytes of one element."""
    if dtype in _WIDTHS:
        return _WIDTHS[dtype]
    digits = "".join(c for c in dtype.removeprefix("float8").removeprefix("float4") if c.isdigit())
    return max(1, int(digits) // 8) if digits and dtype.startswith(("float", "int", "uint")) and "_" not in dtype else 1


def covers_storage(layout: Layout) -> bool:
    """Whether a view without overlap fills its whole storage."""
    return layout.elements * element_bytes(layout.dtype) >= layout.storage_bytes and not _overlaps_itself(layout)


def _overlaps_itself(layout: Layout) -> bool:
    """Whether two indices may lead to one element."""
    extent = 0
    for stride, size in sorted(zip(layout.strides, layout.shape, strict=True)):
        if size > 1:
            if stride <= extent:
                return True
            extent += (size - 1) * stride
    return False


@lru_cache(maxsize=256)
def _mask(layout: Layout, length: int) -> Array:
    """One bool per byte of the storage."""
    width = element_bytes(layout.dtype)
    mask = np.zeros(max(1, -(-length // width)), dtype=bool)
    view = np.lib.stride_tricks.as_strided(
        mask[layout.offset :], layout.shape, tuple(stride * mask.itemsize for stride in layout.strides)
    )
    view[...] = True
    return np.repeat(mask, width)[:length]


@lru_cache(maxsize=4096)
def _bounds(layout: Layout) -> tuple[int, int]:
    """First byte, and the byte after the last one."""
    width = element_bytes(layout.dtype)
    if not layout.elements:
        return (0, 0)
    last = layout.offset + sum((size - 1) * stride for size, stride in zip(layout.shape, layout.strides, strict=True))
    return layout.offset * width, (last + 1) * width


def come_near(first: Layout, second: Layout) -> bool:
    """Whether the stretches of memory that two views of one storage lie in share a byte."""
    (low, high), (other_low, other_high) = _bounds(first), _bounds(second)
    return low < other_high and other_low < high


def _is_dense(layout: Layout) -> bool:
    """Whether a view fills the stretch of memory that it lies in."""
    low, high = _bounds(layout)
    return layout.elements * element_bytes(layout.dtype) == high - low and not _overlaps_itself(layout)


def overlap(first: Layout | None, second: Layout | None, covers: tuple[Layout, ...] = ()) -> bool:
    """Whether two views of one storage share an element that no cover hides; True where that cannot be told."""
    if first is None or second is None:
        return True
    if not come_near(first, second):
        return False
    high, other_high = _bounds(first)[1], _bounds(second)[1]
    covers = tuple(cover for cover in covers if come_near(cover, first) and come_near(cover, second))
    if not covers and _is_dense(first) and _is_dense(second):
        return True
    length = max(high, other_high, *(_bounds(cover)[1] for cover in covers)) if covers else max(high, other_high)
    if length > _MOST_ELEMENTS:
        return True
    shared = _mask(first, length) & _mask(second, length)
    for cover in covers:
        shared &= ~_mask(cover, length)
    return bool(shared.any())


def leaves_uncovered(view: Layout | None, covers: list[Layout]) -> bool:
    """Whether a view has elements that none of the others covers; False where that cannot be told."""
    if view is None or any(covers_storage(cover) for cover in covers):
        return False
    covers = [cover for cover in covers if come_near(cover, view)]
    if not covers:
        return view.elements > 0
    length = max([_bounds(view)[1], *(_bounds(cover)[1] for cover in covers)])
    if length > _MOST_ELEMENTS:
        return False
    left = _mask(view, length).copy()
    for cover in covers:
        left &= ~_mask(cover, length)
    return bool(left.any())
