"""Checks a function on batches of different sizes: does the result of a row depend on the others?"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from determinism.batch.compare import Place, PlacedCall, by_shapes, compare_batches
from determinism.batch.diagnose import CureSearch, Trial
from determinism.comparison.result import Comparison
from determinism.digest import digest_bytes
from determinism.errors import UsageError
from determinism.frameworks.registry import ROW_RECORDERS, STATES
from determinism.run_spec import RunSpec
from determinism.session import seeding
from determinism.session.record import recording
from determinism.session.snapshot import Snapshot
from determinism.trace.opening import open_trace
from determinism.trace.row_calls import SeenCall, SeenTensor
from determinism.trace.schema import NONE
from determinism.types import Verdict

# Batches of arrays of any framework: cut into smaller ones, and compared by the digests of their rows.


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
        f"The batch holds {found}, so it cannot be cut into smaller ones. Give one array, or a list, tuple or "
        "dictionary of arrays, all with the same number of rows in their first dimension; keep data that belongs to "
        "all rows out of it.",
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
    """The arrays of a value, with the digests of the rows in their first dimension."""
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
    """The array as a NumPy array; as bytes if NumPy lacks its dtype."""
    if isinstance(thing, np.ndarray):
        return thing
    for name, module in STATES.items():
        found = import_module(module).to_array(thing) if name in sys.modules else None
        if found is not None:
            return found[0]
    return np.asarray(thing)


_FACTS = {"phase": "forward", "training": False, "draws": False, "state": "", "changed": [], "sensitive": []}


def check_batch_invariance(
    function: Callable[[Any], Any], /, batch: Any, sizes: Sequence[int] = (1, 16, 64)
) -> Comparison:
    """Call a function on a batch that is cut into batches of different sizes, and compare the results of each row.

    Before each size, the states of the random generators are restored, and with PyTorch everything else that the function
    can reach. With PyTorch and JAX, the first op whose result for an equal row differs is named, with its line; with
    TensorFlow, only the results are compared. If a model was left in training mode, evaluation mode is tried as a fix.

    Args:
        function: What to check: a model, or a function of one argument.
        batch: An array or tensor with one row for each index of its first dimension, or a nested list, tuple or dictionary of them.
            The largest batch has all of its rows.
        sizes: How many rows a batch has; a size beyond the number of rows means all of them.

    Returns:
        The comparison; `verdict` is `same`, `different` or `inconclusive`, and `batch` has the findings about rows.

    Raises:
        UsageError: The batch cannot be cut into rows, or there are fewer than two sizes.
        StateError: Something that the function can reach cannot be copied.

    Example:
        >>> import torch
        >>> found = determinism.check_batch_invariance(torch.nn.ReLU(), torch.ones(4, 2), sizes=(1, 4))
        >>> print(found.verdict)
        same
    """
    count = rows_of(batch)
    wanted = sorted({min(size, count) for size in sizes if size > 0})
    if len(wanted) < 2:
        raise UsageError(
            "batch-sizes",
            f"sizes={tuple(sizes)} and a batch of {count} rows do not give two sizes, so there is nothing to compare. "
            "Give more rows, or two sizes of at most that number, such as sizes=(1, 16).",
        )
    check = _Check(function, batch, wanted)
    comparison = check.compare()
    return check.explained(comparison) if comparison.verdict is Verdict.DIFFERENT else comparison


class _Check:
    """One check, whose function may be called with the settings of a trial."""

    def __init__(self, function: Callable[[Any], Any], batch: Any, sizes: list[int]) -> None:
        self._function = function
        self._batch = batch
        self._sizes = sizes
        self._has_recorder = any(name in sys.modules for name in ROW_RECORDERS)
        put_back = seeding.capture_states()
        self._restore = Snapshot.take(function, (batch,), {}).restore if self._has_recorder else put_back

    def compare(self, trial: Trial | None = None) -> Comparison:
        """Call the function with each size, and compare the rows."""
        place = Place(getattr(self._function, "__qualname__", type(self._function).__qualname__), True)
        # Once more in reverse order: a function that draws row by row, in the same order, gives rows the same numbers.
        sizes = [*self._sizes, self._sizes[0]]
        with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
            traces = [Path(folder) / f"run-{run}" for run in range(len(sizes))]
            for run, (trace, size) in enumerate(zip(traces, sizes, strict=True)):
                cut = portions(self._batch, size)
                self._call(run, trace, place, {"batch": size, "settings": list(trial.settings) if trial else []}, cut)
            opened = [open_trace(trace) for trace in traces] if self._has_recorder else []
            comparison = compare_batches(opened, sizes, by_shapes(place))
        runs = tuple(replace(run, command=[place.name], trace=None) for run in comparison.runs)
        rows = comparison.batch
        if rows is not None and not self._has_recorder:
            rows = replace(rows, not_told=_NOT_TOLD.format(_others()))
        return replace(comparison, runs=runs, batch=rows)

    def _call(self, run: int, trace: Path, place: Place, rows: dict[str, Any], cut: list[Any]) -> None:
        """Call the function with each batch, in the last run in reverse order."""
        ordered = cut[::-1] if run == len(self._sizes) else cut
        try:
            with recording(RunSpec(trace, rows=rows)) if self._has_recorder else nullcontext():
                results = [(portion, self._function(portion)) for portion in ordered]
        finally:
            self._restore()
        for portion, result in results:
            count = rows_of(portion)
            call = SeenCall(
                NONE, place.name, NONE, count, _FACTS, seen_arrays(portion, count), seen_arrays(result, count)
            )
            place.calls.append(PlacedCall(run, len(place.calls), call, None, None, "", (), 0))

    def explained(self, comparison: Comparison) -> Comparison:
        """Try the settings that can be made within this process."""

        def attempt(trial: Trial) -> Comparison | None:
            return self.compare(trial) if self._has_recorder and not trial.environment else None

        search = CureSearch(comparison, attempt)
        search.run()
        return search.comparison


def _others() -> str:
    return " and ".join(name for name in STATES if name in sys.modules and name not in ROW_RECORDERS) or "NumPy"


_NOT_TOLD = (
    "Which op makes the first difference is not known: the rows of {}'s ops are not recorded, so only the results of "
    "the function were compared. Check parts of the model one by one."
)
