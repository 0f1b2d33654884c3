"""The elements of a storage that a view covers, checked against a slow count of every byte."""

from __future__ import annotations

import itertools
import random

import pytest

from determinism.comparison.records import covers_storage, element_bytes, leaves_uncovered, overlap
from determinism.trace.schema import Layout
from tests.traces import layout

WHOLE = layout(4, 6)
ROWS = layout(2, 6, elements=24)
LATER_ROWS = layout(2, 6, offset=12, elements=24)
LEFT = layout(4, 3, strides=(6, 1), elements=24)
RIGHT = layout(4, 3, offset=3, strides=(6, 1), elements=24)
EVEN = layout(4, 3, strides=(6, 2), elements=24)
ODD = layout(4, 3, offset=1, strides=(6, 2), elements=24)
TURNED = layout(6, 4, strides=(1, 6))
NOTHING = layout(0, 6, elements=24)
ONE = layout(offset=5, elements=24)
EXPANDED = layout(24, offset=5, strides=(0,), elements=24)
VIEWS = [WHOLE, ROWS, LATER_ROWS, LEFT, RIGHT, EVEN, ODD, TURNED, NOTHING, ONE, EXPANDED]


def bytes_of(view: Layout) -> set[int]:
    """Every byte that a view reaches."""
    width = element_bytes(view.dtype)
    places = itertools.product(*(range(size) for size in view.shape))
    starts = (view.offset + sum(i * stride for i, stride in zip(place, view.strides, strict=True)) for place in places)
    return {start * width + byte for start in starts for byte in range(width)}


def random_views(count: int) -> list[Layout]:
    """Views within a storage of 64 bytes; some overlap themselves."""
    own = random.Random(7)
    views: list[Layout] = []
    while len(views) < count:
        dtype = own.choice(["uint8", "float16", "float32", "int64", "complex64"])
        shape = [own.randint(0, 3) for _ in range(own.randint(0, 3))]
        strides = [own.randint(0, 5) for _ in shape]
        view = layout(
            *shape, offset=own.randint(0, 6), strides=strides, elements=64 // element_bytes(dtype), dtype=dtype
        )
        if max(bytes_of(view), default=0) < 64:
            views.append(view)
    return views


@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        ("float32", 4), ("float64", 8), ("float16", 2), ("bfloat16", 2), ("bool", 1), ("uint8", 1), ("int8", 1),
        ("int16", 2), ("int32", 4), ("int64", 8), ("uint16", 2), ("uint32", 4), ("uint64", 8), ("complex32", 4),
        ("complex64", 8), ("complex128", 16), ("float8_e4m3fn", 1), ("float8_e5m2", 1), ("float8_e8m0fnu", 1),
        ("float4_e2m1fn_x2", 1), ("quint8", 1), ("qint8", 1), ("qint32", 4), ("quint4x2", 1),
    ],
)  # fmt: skip
def test_an_element_has_the_size_of_its_dtype(dtype: str, width: int) -> None:
    assert element_bytes(dtype) == width


def test_views_overlap_if_they_share_bytes() -> None:
    for first, second in itertools.product([*VIEWS, *random_views(60)], repeat=2):
        assert overlap(first, second) == bool(bytes_of(first) & bytes_of(second)), (first, second)


def test_unknown_views_overlap() -> None:
    assert overlap(None, WHOLE) and overlap(WHOLE, None) and overlap(None, None)


def test_halves_do_not_overlap() -> None:
    assert not overlap(LEFT, RIGHT) and not overlap(EVEN, ODD) and not overlap(ROWS, LATER_ROWS)
    assert overlap(LEFT, EVEN) and overlap(TURNED, ONE)


def test_views_of_different_dtypes_overlap_by_bytes() -> None:
    doubles = layout(2, offset=1, elements=4, dtype="float64")
    assert overlap(doubles, layout(1, offset=2, elements=8))
    assert not overlap(doubles, layout(2, elements=8))


def test_uncovered_bytes_are_found() -> None:
    for view in VIEWS:
        for covers in (
            [],
            [LEFT],
            [LEFT, RIGHT],
            [EVEN, ODD],
            [ROWS],
            [WHOLE],
            [LATER_ROWS, ROWS],
            [EXPANDED],
            [ONE, EXPANDED],
        ):
            left = bytes_of(view) - {byte for cover in covers for byte in bytes_of(cover)}
            assert leaves_uncovered(view, covers) == bool(left), (view, covers)


def test_uncovered_bytes_of_random_views_are_found() -> None:
    views = random_views(150)
    own = random.Random(3)
    for view in views:
        covers = own.sample(views, 3)
        left = bytes_of(view) - {byte for cover in covers for byte in bytes_of(cover)}
        assert leaves_uncovered(view, covers) == bool(left), (view, covers)


def test_only_views_of_all_elements_cover_their_storage() -> None:
    assert covers_storage(WHOLE) and covers_storage(TURNED) and covers_storage(layout(1, 1))
    assert not any(covers_storage(view) for view in (ROWS, LEFT, EVEN, ONE, NOTHING))


def test_an_expanded_element_does_not_cover_its_storage() -> None:
    assert not covers_storage(EXPANDED)


def test_empty_views_of_empty_storages_do_not_overlap() -> None:
    nothing = layout(0, elements=0)
    assert not overlap(nothing, nothing)
    assert not leaves_uncovered(nothing, [])


def test_tensors_without_their_own_memory_are_treated_as_unknown() -> None:
    sparse = WHOLE._replace(strides=(), storage_bytes=0)
    assert overlap(sparse, sparse) and overlap(WHOLE, sparse) and overlap(ROWS, ROWS, (sparse,))
    assert not (covers_storage(sparse) or leaves_uncovered(sparse, []) or leaves_uncovered(sparse, [WHOLE]))
    assert leaves_uncovered(WHOLE, [sparse])


def test_the_cost_does_not_depend_on_the_size_of_a_storage() -> None:
    size = 1 << 33
    low, high = layout(size, elements=2 * size), layout(size, offset=size, elements=2 * size)
    assert not overlap(low, high)
    assert overlap(low, low)
    assert not leaves_uncovered(low, [low])
