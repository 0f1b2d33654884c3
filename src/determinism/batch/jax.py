"""Digests the rows of every execution of a compiled program of JAX, so that batches can be compared row by row.

JAX has no modules: a function under `jax.jit`, and each op outside of one, is an op that takes and makes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from determinism.digest import digest_bytes
from determinism.frameworks.jax.arrays import array_of, as_array
from determinism.frameworks.jax.inside import functions_in
from determinism.trace.row_calls import RowCallsWriter, SeenCall, SeenTensor, counts_of_rows
from determinism.trace.schema import NONE
from determinism.types import Phase

_DRAWS = frozenset(
    {"random_bits", "random_split", "random_fold_in", "threefry2x32", "rng_bit_generator", "rng_uniform"}
)
_MOVES = frozenset(
    {
        "gather", "slice", "dynamic_slice", "dynamic_update_slice", "concatenate", "reshape", "transpose", "sort", "rev", "squeeze", "expand_dims",
        "broadcast_in_dim", "pad", "select_n", "iota", "copy", "copy_p", "split", "scatter", "convert_element_type", "lt", "le", "add", "clamp", "rem",
    }
)  # fmt: skip
"""The primitives of indexing and sorting; on integers also comparisons and sums, which compute the indices."""
_OF_INDICES = frozenset({"lt", "le", "add", "clamp", "rem"})


def seen(array: Any, batch: int) -> SeenTensor:
    """The digests with which an array is compared row by row."""
    shape = tuple(int(size) for size in array.shape)
    array = np.ascontiguousarray(array).reshape(shape)
    counts = counts_of_rows(shape, batch) if array.size else ()
    rows = {dimension: _digests(np.moveaxis(array, dimension, 0), count) for dimension, count in counts}
    return SeenTensor(shape, digest_bytes(array.tobytes()), rows)


def _digests(array: Any, count: int) -> bytes:
    """The digests of equal parts of the elements of an array."""
    content = np.ascontiguousarray(array).tobytes()
    length = len(content) // count
    return b"".join(digest_bytes(content[at : at + length]) for at in range(0, len(content), length))


class _Given(NamedTuple):
    """An execution that is about to run."""

    inputs: tuple[SeenTensor, ...]
    is_mixing: bool


class _Program(NamedTuple):
    """Facts about a compiled program from its jaxpr."""

    draws: bool
    only_moves: bool
    """Whether it only moves values, as indexing does; if so, equal rows in need not mean equal rows out."""


class Rows:
    """The rows that executions in the program's thread read and made."""

    def __init__(self, request: dict[str, Any], folder: Path, full: Callable[[str], None]) -> None:
        """Open the file.

        Args:
            request: `batch`; see `RunSpec.rows`.
            folder: The folder of the process.
            full: Called once, with the reason, when no more rows are kept.

        Raises:
            OSError: The file cannot be made.
        """
        self._batch = int(request["batch"])
        self._writer = RowCallsWriter(folder)
        self._full = full
        self._programs: dict[Any, _Program] = {}
        self._mixing: dict[Any, bool] = {}

    def before(self, original: Callable[..., Any], execution: Any, jaxpr: Any, args: Sequence[Any]) -> _Given | None:
        """Digest the inputs, whose memory the execution may take over; None if its rows are not to be compared."""
        program = self._programs.get(execution)
        if program is None:
            program = self._programs[execution] = _described(jaxpr)
        if program.only_moves or execution.has_host_callbacks:
            return None
        kept = [at for at in range(len(args)) if at in execution.kept_var_idx]
        arrays = {at: as_array(args[at]) for at in kept}
        if execution not in self._mixing:
            self._mixing[execution] = not program.draws and self._combines_rows(original, execution, args, arrays)
        return _Given(tuple(seen(arrays[at], self._batch) for at in kept), self._mixing[execution])

    def after(self, record: int, name: str, execution: Any, given: _Given, made: Sequence[Any]) -> None:
        """Digest the outputs of the execution, which has run and was recorded."""
        draws = self._programs[execution].draws
        facts = {
            "phase": Phase.FORWARD.label,
            "training": False,
            "draws": draws,
            "trains": False,
            "dim": None,
            "mixes": given.is_mixing,
        }
        outputs = tuple(seen(as_array(array), self._batch) for array in made)
        call = SeenCall(record, name, NONE, self._batch, facts, given.inputs, outputs)
        if (reason := self._writer.add(call)) is not None:
            self._full(reason)

    def _combines_rows(
        self, original: Callable[..., Any], execution: Any, args: Sequence[Any], arrays: dict[int, Any]
    ) -> bool:
        """Whether the result of the first row changes when all other rows are set to it, in a batch of the same size."""
        alike, taken = list(args), False
        for at, array in arrays.items():
            axis = self._axis_of(array)
            if axis is not None and array_of(args[at]) is args[at]:
                first = np.take(array, [0], axis)
                alike[at] = jax.device_put(np.repeat(first, self._batch, axis), args[at].sharding)
                taken = True
            elif array_of(args[at]) is args[at]:
                # A copy, since the program takes over the memory of donated arrays.
                alike[at] = jax.device_put(np.array(array), args[at].sharding)
        if not taken or self._batch == 1:
            return False
        first_rows = []
        for given in (self._copied(args, arrays), alike):
            results = [as_array(one) for one in original(execution, *given) if array_of(one) is not None]
            axes = [self._axis_of(one) for one in results]
            first_rows.append(
                [np.take(one, 0, axis).tobytes() for one, axis in zip(results, axes, strict=True) if axis is not None]
            )
        return first_rows[0] != first_rows[1]

    @staticmethod
    def _copied(args: Sequence[Any], arrays: dict[int, Any]) -> list[Any]:
        return [
            jax.device_put(np.array(arrays[at]), one.sharding) if at in arrays and array_of(one) is one else one
            for at, one in enumerate(args)
        ]

    def _axis_of(self, array: Any) -> int | None:
        """The dimension that most likely is that of an array's rows."""
        return next((axis for axis, size in enumerate(array.shape) if size == self._batch), None)

    def close(self) -> None:
        """Finish the file.

        Raises:
            OSError: The file cannot be written.
        """
        self._writer.close()


def _described(jaxpr: Any) -> _Program:
    if jaxpr is None:
        return _Program(draws=False, only_moves=False)
    equations = list(_equations(getattr(jaxpr, "jaxpr", jaxpr)))
    names = {one.primitive.name for one in equations}
    moves = bool(equations) and all(_moves(one) for one in equations)
    return _Program(draws=not names.isdisjoint(_DRAWS), only_moves=moves)


def _moves(equation: Any) -> bool:
    name = equation.primitive.name
    if name in _OF_INDICES:
        return all(getattr(one.aval, "dtype", np.dtype("f")).kind in "iub" for one in equation.invars)
    return name in _MOVES


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a function and of the functions it calls; those that only call are left out."""
    for equation in jaxpr.eqns:
        called = list(functions_in(equation))
        if not called:
            yield equation
        for one in called:
            yield from _equations(one)
