"""Checks a function on batches of different sizes: does what becomes of a row depend on the others?"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from determinism.comparison.batch_invariance import compare_batches
from determinism.comparison.result import Comparison
from determinism.comparison.row_places import Place, PlacedCall, by_shapes
from determinism.diagnose.batch_cure import CureSearch
from determinism.diagnose.batch_trials import Trial
from determinism.errors import UsageError
from determinism.frameworks.registry import ROW_RECORDERS, STATE_KEEPERS
from determinism.session import seeding
from determinism.session.recording import Options, recording
from determinism.session.row_arrays import portions, rows_of, seen_arrays
from determinism.session.snapshot import Snapshot
from determinism.trace.opening import open_trace
from determinism.trace.row_calls import SeenCall
from determinism.trace.schema import NONE
from determinism.types import Verdict

_FACTS = {"phase": "forward", "training": False, "draws": False, "state": "", "changed": [], "sensitive": []}


def check_batch_invariance(
    function: Callable[[Any], Any], /, batch: Any, sizes: Sequence[int] = (1, 16, 64)
) -> Comparison:
    """Call a function on a batch that is cut into batches of different sizes, and compare what becomes of each row.

    Before each size, the states of the random generators are put back, and with PyTorch everything else that the function can reach.
    With PyTorch the first op that makes something else of an equal row is named, with its line; of TensorFlow and JAX only the
    results are compared. Where a model was left in training mode, it is tried whether evaluation mode cures it.

    Args:
        function: What to check: a model, or a function of one argument.
        batch: An array or tensor whose first dimension are the rows, or a nested list, tuple or dictionary of such; all of it in one batch is
            what the largest size may be.
        sizes: How many rows a batch has; those beyond the rows that there are count as all of them.

    Returns:
        The comparison; `verdict` is `same`, `different` or `inconclusive`, and `batch` tells about the rows.

    Raises:
        UsageError: The batch cannot be cut into rows, or there are no two sizes.
        StateError: Something that the function can reach cannot be copied.
    """
    count = rows_of(batch)
    wanted = sorted({min(size, count) for size in sizes if size > 0})
    if len(wanted) < 2:
        raise UsageError(
            "batch-sizes",
            f"sizes={tuple(sizes)} and a batch of {count} rows give no two sizes, so there is nothing to compare. Give more rows, or two "
            "sizes up to their number, such as sizes=(1, 16).",
        )
    check = _Check(function, batch, wanted)
    comparison = check.compare()
    if comparison.verdict is Verdict.DIFFERENT:
        check.explain(comparison)
    return comparison


class _Check:
    """One check, whose function may be called with something set."""

    def __init__(self, function: Callable[[Any], Any], batch: Any, sizes: list[int]) -> None:
        self._function = function
        self._batch = batch
        self._sizes = sizes
        self._has_recorder = any(name in sys.modules for name in ROW_RECORDERS)
        put_back = seeding.capture_states()
        self._restore = Snapshot.take(function, (batch,), {}).restore if self._has_recorder else put_back

    def compare(self, trial: Trial | None = None) -> Comparison:
        """Call it with each size, and compare."""
        place = Place(getattr(self._function, "__qualname__", type(self._function).__qualname__), True)
        # Once more in another order: who draws row by row, in the same order, gives each row the same numbers.
        sizes = [*self._sizes, self._sizes[0]]
        with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
            traces = [Path(folder) / f"run-{run}" for run in range(len(sizes))]
            for run, (trace, size) in enumerate(zip(traces, sizes, strict=True)):
                cut = portions(self._batch, size)
                self._call(run, trace, place, {"batch": size, "settings": list(trial.settings) if trial else []}, cut)
            opened = [open_trace(trace) for trace in traces] if self._has_recorder else []
            comparison = compare_batches(opened, sizes, by_shapes(place))
        for one in comparison.runs:
            one.command = [place.name]
            one.trace = None
        assert comparison.batch is not None
        if not self._has_recorder:
            comparison.batch.not_told = _NOT_TOLD.format(_others())
        return comparison

    def _call(self, run: int, trace: Path, place: Place, rows: dict[str, Any], cut: list[Any]) -> None:
        """Call it with each of some batches; with the last run's in reverse order."""
        ordered = cut[::-1] if run == len(self._sizes) else cut
        try:
            with recording(trace, Options(rows=rows)) if self._has_recorder else nullcontext():
                results = [(portion, self._function(portion)) for portion in ordered]
        finally:
            self._restore()
        for portion, result in results:
            count = rows_of(portion)
            call = SeenCall(
                NONE, place.name, NONE, count, _FACTS, seen_arrays(portion, count), seen_arrays(result, count)
            )
            place.calls.append(PlacedCall(run, len(place.calls), call, None, None, "", (), 0))

    def explain(self, comparison: Comparison) -> None:
        """Try what can be set within this process."""

        def attempt(trial: Trial) -> Comparison | None:
            return self.compare(trial) if self._has_recorder and not trial.environment else None

        CureSearch(comparison, attempt).run()


def _others() -> str:
    return " and ".join(name for name in STATE_KEEPERS if name in sys.modules and name not in ROW_RECORDERS) or "NumPy"


_NOT_TOLD = (
    "Which op makes the first difference cannot be told: rows of the ops of {} are not recorded, so the results of the function were compared and nothing "
    "in between. Check parts of the model one by one."
)
