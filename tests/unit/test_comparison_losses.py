"""The losses of two runs: which number is the loss of a step, and which of very many are shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from determinism.comparison.divergence import MOST_ENTRIES, Loss
from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare
from determinism.trace.schema import Meaning
from determinism.types import Role, Verdict
from tests.traces import TraceBuilder

Writer = Callable[[TraceBuilder, int], None]


def compared(folder: Path, write: Writer) -> Comparison:
    folders = []
    for run in range(2):
        builder = TraceBuilder(folder / str(run))
        write(builder, run)
        folders.append(builder.close())
    return compare(*folders)


def found(folder: Path, write: Writer) -> list[Loss] | None:
    step_history = compared(folder, write).step_history
    return None if step_history is None else step_history.losses


def lose(builder: TraceBuilder, value: float, meaning: Meaning = Meaning.LOSS) -> int:
    """Start a backward pass from a tensor, and return the record that made it."""
    made = builder.add("aten::mean", outputs=[f"{value}"])
    record = builder.add("determinism::loss", [made], [f"{value}"], role=Role.LOSS)
    builder.number(meaning, value if meaning is Meaning.LOSS else 0.0, record, producer=made)
    return made


def read(builder: TraceBuilder, value: float, made: int) -> None:
    """Record that `item()` gives the program a number."""
    record = builder.add("aten::_local_scalar_dense", [made], [f"{value}"], role=Role.ESCAPE)
    builder.number(Meaning.READ, value, record, producer=made)


def test_each_step_has_the_loss_of_both_runs(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        for step in range(4):
            lose(builder, 1 / (step + 1) + (run if step == 3 else 0))
            builder.step()

    assert found(tmp_path, write) == [
        Loss(0, 1, 1),
        Loss(1, 1 / 2, 1 / 2),
        Loss(2, 1 / 3, 1 / 3),
        Loss(3, 1 / 4, 5 / 4),
    ]


def test_equal_runs_have_their_losses_too(tmp_path: Path) -> None:
    comparison = compared(tmp_path, lambda builder, run: read(builder, 0.5, lose(builder, 0.5)))
    assert comparison.verdict is Verdict.SAME
    assert comparison.step_history is not None and comparison.step_history.runs == (1, 2)
    assert comparison.step_history.losses == [Loss(0, 0.5, 0.5)]


def test_a_loss_that_was_not_available_is_known_from_a_later_read(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        other = builder.add("aten::norm", outputs=["norm"])
        made = lose(builder, 0.25, Meaning.UNKNOWN_LOSS)
        read(builder, 7.0, other)
        read(builder, 0.25, made)
        builder.step()

    assert found(tmp_path, write) == [Loss(0, 0.25, 0.25)]


def test_an_unread_loss_is_unknown(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        lose(builder, 1.0)
        builder.step()
        lose(builder, 0.25, Meaning.UNKNOWN_LOSS)
        builder.step()

    assert found(tmp_path, write) == [Loss(0, 1.0, 1.0), Loss(1, None, None)]


def test_the_first_backward_of_a_step_counts(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        lose(builder, 3.0)
        lose(builder, 4.0)
        builder.step()

    assert found(tmp_path, write) == [Loss(0, 3.0, 3.0)]


def test_nan_and_infinite_losses_are_not_shown(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        lose(builder, 1.0)
        builder.step()
        lose(builder, math.inf if run else math.nan)
        builder.step()

    assert found(tmp_path, write) == [Loss(0, 1.0, 1.0), Loss(1, None, None)]


def test_a_step_that_only_one_run_has(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        for _ in range(1 + run):
            lose(builder, 1.0)
            builder.step()

    assert found(tmp_path, write) == [Loss(0, 1.0, 1.0), Loss(1, None, 1.0)]


def test_runs_without_losses_have_none(tmp_path: Path) -> None:
    assert found(tmp_path, lambda builder, run: read(builder, 1.0, builder.add("aten::a"))) is None


def test_the_losses_are_those_of_the_process_that_departed(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        lose(builder, 1.0)
        builder.step()
        other = builder.beside("rank-1")
        lose(other, 2.0 + run)
        other.step()

    assert found(tmp_path, write) == [Loss(0, 2.0, 3.0)]


def test_the_largest_differences_are_kept_among_very_many_losses(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        for step in range(2500):
            builder.number(Meaning.LOSS, 1.0 + (run if step == 1234 else 0), 0)
            builder.step()

    shown = found(tmp_path, write)
    assert shown is not None and len(shown) <= MOST_ENTRIES
    assert (shown[0].step, shown[-1].step) == (0, 2499)
    assert Loss(1234, 1.0, 2.0) in shown
    assert [loss.step for loss in shown] == sorted({loss.step for loss in shown})
