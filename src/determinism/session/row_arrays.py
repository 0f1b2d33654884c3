"""Batches of arrays of any framework: taken apart into smaller ones, and known by the digests of their rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from determinism.digest import digest_bytes
from determinism.errors import UsageError
from determinism.frameworks.registry import STATE_KEEPERS
from determinism.trace.row_calls import SeenTensor


def leaves(value: Any) -> Iterator[Any]:
    """The arrays in nested lists, tuples and mappings, in order; other values are left out."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield value


def rows_of(batch: Any) -> int:
    """How many rows a batch has.

    Raises:
        UsageError: It holds no array, or arrays of different lengths.
    """
    lengths = {int(array.shape[0]) if len(array.shape) else 0 for array in leaves(batch)}
    if len(lengths) == 1 and 0 not in lengths:
        return lengths.pop()
    found = "no array" if not lengths else f"arrays with {', '.join(map(str, sorted(lengths)))} rows"
    raise UsageError(
        "batch-unfit",
        f"The batch holds {found}, so it cannot be cut into smaller ones. Give one array, or a list, tuple or dictionary of arrays, all with "
        "the same number of rows in their first dimension; keep what belongs to all rows out of it.",
    )


def portions(batch: Any, size: int) -> list[Any]:
    """The batch, cut into batches of at most this size, in order."""
    return [_mapped(batch, slice(start, start + size)) for start in range(0, rows_of(batch), size)]


def _mapped(value: Any, rows: slice) -> Any:
    if isinstance(value, Mapping):
        return type(value)(**{name: _mapped(item, rows) for name, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, rows) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(item, rows) for item in value)
    return value[rows] if hasattr(value, "shape") and hasattr(value, "dtype") else value


def seen_arrays(value: Any, batch: int) -> tuple[SeenTensor, ...]:
    """The arrays of a value, with the digests of the rows in their first dimension.

    Args:
        value: What went into a call or came out of it.
        batch: How many samples the batch has.
    """
    return tuple(_seen(array, batch) for array in leaves(value))


def _seen(thing: Any, batch: int) -> SeenTensor:
    shape = tuple(int(size) for size in thing.shape)
    data = np.ascontiguousarray(_array(thing)).tobytes()
    rows = {}
    if shape and data and not shape[0] % batch and shape[0] > 1:
        each = len(data) // shape[0]
        rows[0] = b"".join(digest_bytes(data[at : at + each]) for at in range(0, len(data), each))
    return SeenTensor(shape, digest_bytes(data), rows)


def _array(thing: Any) -> Any:
    """As NumPy has it; what NumPy has no numbers for, as bytes."""
    if isinstance(thing, np.ndarray):
        return thing
    for name, module in STATE_KEEPERS.items():
        found = import_module(module).to_array(thing) if name in sys.modules else None
        if found is not None:
            return found[0]
    return np.asarray(thing)
