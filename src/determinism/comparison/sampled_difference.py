"""How far two outputs are apart, as far as their kept elements show it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from determinism.comparison.divergence import OutputDifference
from determinism.comparison.value_difference import difference
from determinism.trace.kept_values import sampled_places
from determinism.trace.names import Layout
from determinism.trace.tensor_file import BYTES, StoredTensor

_STORED = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16",
    "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "F32", "complex128": "F64",
}  # fmt: skip


class Sample(NamedTuple):
    """Elements that were kept of one output."""

    layout: Layout
    elements: bytes


def sampled_difference(first: Sample | None, second: Sample | None, most: int) -> OutputDifference | None:
    """Compare what two runs kept of an output; None where they cannot be compared, as tensors of other shapes cannot.

    Args:
        first: Of the first run; None if nothing was kept.
        second: Of the other one.
        most: How many elements were kept at most.
    """
    if first is None or second is None:
        return None
    layout = first.layout
    if (layout.dtype, layout.shape) != (second.layout.dtype, second.layout.shape):
        return None
    places = sampled_places(layout.elements, most) if layout.elements > most else None
    shape = layout.shape if places is None else (len(places),)
    stored = [_stored(sample, shape) for sample in (first, second)]
    if stored[0] is None or stored[1] is None:
        return None
    found = difference(stored[0], stored[1], shape)
    if found is None:
        return None
    output = OutputDifference(layout.dtype, layout.shape, layout.device, layout.elements)
    output = replace(output, **found._asdict())
    if places is None:
        return output
    examples = tuple(replace(one, index=_index(places[one.index[0]], layout.shape)) for one in output.examples or ())
    return replace(output, elements_sampled=len(places), examples=examples or None, extent=None)


def _stored(sample: Sample, shape: tuple[int, ...]) -> StoredTensor | None:
    dtype = sample.layout.dtype
    kind = _STORED.get(dtype)
    if kind is None:
        # Of types that nothing else has, the bytes are compared.
        width = len(sample.elements) // math.prod(shape) if math.prod(shape) else 0
        kind, shape = "U8", (*shape, width)
    elif dtype.startswith("complex"):
        shape = (*shape, 2)
    is_whole = math.prod(shape) * BYTES[kind] == len(sample.elements)
    return StoredTensor(kind, shape, sample.elements) if is_whole else None


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an element, from its place in the order of the indices."""
    index = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        index.append(at)
    return tuple(reversed(index))
