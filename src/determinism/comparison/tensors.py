"""Measures how far apart two tensors are that two runs stored in files."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from determinism.comparison.divergence import ValueExample
from determinism.trace.files import BYTES, StoredTensor

MOST_EXAMPLES = 3


_NUMBERS = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip


_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})


_DIGITS = {"F64": ".17g", "F32": ".9g"}


_Array = NDArray[Any]


class ValueDifference(NamedTuple):
    """The difference between two tensors; the fields are those of an `OutputDifference`."""

    elements_different: int
    max_ulp: int | None
    max_abs: float | None
    examples: tuple[ValueExample, ...] | None
    extent: tuple[tuple[int, int], ...] | None
    max_relative: float | None = None


def difference(first: StoredTensor, second: StoredTensor, shape: tuple[int, ...]) -> ValueDifference | None:
    """Compare two tensors bit by bit; None if their types or shapes differ.

    Args:
        first: One of them.
        second: The other.
        shape: The shape of the original tensors. The stored ones have one more dimension where an element is stored in
            parts: the two parts of a complex number, or the bytes of a type that the format does not know.
    """
    if first.dtype != second.dtype or first.shape != second.shape or first.shape[: len(shape)] != shape:
        return None
    bits = [np.frombuffer(one.elements, f"<i{BYTES[one.dtype]}").reshape(one.shape) for one in (first, second)]
    parts_differ = bits[0] != bits[1]
    differ = parts_differ.any(axis=-1) if parts_differ.ndim > len(shape) else parts_differ
    places = np.argwhere(differ)
    if not len(places):
        return ValueDifference(0, None, None, None, None)
    examples = tuple(_example(first, second, tuple(place)) for place in places[:MOST_EXAMPLES].tolist())
    ends = zip(places.min(axis=0).tolist(), places.max(axis=0).tolist(), strict=True) if shape else None
    max_ulp, max_abs, max_relative = (
        _distance(first, second, parts_differ) if first.dtype in _FLOATS else (None, None, None)
    )
    extent = None if ends is None else tuple(ends)
    return ValueDifference(len(places), max_ulp, max_abs, examples, extent, max_relative)


def _distance(
    first: StoredTensor, second: StoredTensor, where: _Array
) -> tuple[int | None, float | None, float | None]:
    """Return the largest distances of two tensors of floats: in ulp, in value, and as a fraction of their largest element.

    None where elements are not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        # Memory that was never written may hold signalling NaNs.
        values = [np.asarray(_values(one)).astype("f8") for one in (first, second)]
        apart = float(np.abs(values[0][where] - values[1][where]).max())
    max_abs = apart if math.isfinite(apart) else None
    if not all(np.isfinite(one[where]).all() for one in values):
        return None, max_abs, None
    ordered = [_ordered(one, where) for one in (first, second)]
    # The distance between numbers of opposite signs may need all 64 bits.
    max_ulp = int((np.maximum(*ordered).astype("u8") - np.minimum(*ordered).astype("u8")).max())
    largest = max(float(np.abs(one[np.isfinite(one)]).max()) for one in values)
    return max_ulp, max_abs, apart / largest if largest and max_abs is not None else None


def _ordered(tensor: StoredTensor, where: _Array) -> _Array:
    """Map floats to integers in the same order, which are consecutive where no float is in between."""
    bits = np.frombuffer(tensor.elements, f"<i{BYTES[tensor.dtype]}").reshape(tensor.shape)[where]
    lowest = int(np.iinfo(bits.dtype).min)
    wide = bits.astype("i8")
    return np.where(wide < 0, lowest - wide, wide)


def _values(tensor: StoredTensor) -> _Array | None:
    """Return the elements as numbers; None for types that NumPy does not have."""
    if tensor.dtype == "BF16":
        wide = np.frombuffer(tensor.elements, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(tensor.shape)
    kind = _NUMBERS.get(tensor.dtype)
    return None if kind is None else np.frombuffer(tensor.elements, kind).reshape(tensor.shape)


def _example(first: StoredTensor, second: StoredTensor, place: tuple[int, ...]) -> ValueExample:
    return ValueExample(place, _text(first, place), _text(second, place))


def _text(tensor: StoredTensor, place: tuple[int, ...]) -> str:
    """Format one element so that different values have different texts."""
    values = _values(tensor)
    is_in_parts = len(tensor.shape) > len(place)
    if values is None or (is_in_parts and tensor.dtype == "U8"):
        flat = np.frombuffer(tensor.elements, "u1").reshape(*tensor.shape, BYTES[tensor.dtype])
        return f"bytes {flat[place].tobytes().hex()}"
    if is_in_parts:
        return str(complex(*values[place].tolist()))
    value = values[place].item()
    return format(value, _DIGITS.get(tensor.dtype, ".5g")) if isinstance(value, float) else str(value)
