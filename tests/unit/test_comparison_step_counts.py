"""The number of records that differ in each step, counted to the end and in little memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from determinism.comparison import lockstep
from determinism.comparison.columns import StepCounts
from determinism.comparison.divergence import MOST_ENTRIES, StepSpan
from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare
from determinism.trace.chunks import Chunk
from determinism.types import Role, Verdict
from tests.traces import TraceBuilder


def compared(folder: Path, num_steps: int = 6, differs_from: int = 2, *, extra: int = 0) -> Comparison:
    """Compare two runs with three ops per step, two of which differ from step `differs_from` on."""
    folders = []
    for run in range(2):
        builder = TraceBuilder(folder / str(run))
        for step in range(num_steps):
            text = f"{step} in run {run if step >= differs_from else 0}"
            first = builder.add("aten::a", outputs=[text])
            second = builder.add("aten::b", [first], [f"b {text}"])
            builder.add("aten::c", outputs=[f"{step}"])
            for _ in range(extra if run and step == differs_from else 0):
                builder.add("aten::d", [second], ["d"])
            builder.step({"w": second})
        folders.append(builder.close())
    return compare(*folders)


def test_each_step_has_its_counts(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    assert comparison.step_history is not None
    assert comparison.step_history.runs == (1, 2)
    assert comparison.step_history.steps == [StepSpan(step, step, 3, 2 if step >= 2 else 0) for step in range(6)]


@pytest.mark.parametrize(("steps", "said"), [(0, "In run 1 no step ended"), (1, "Run 1 ended 1 step, but no parameter"), (3, "Run 1 ended 3 steps, but no parameter")])  # fmt: skip
def test_steps_without_state_are_distinguished_from_no_steps(tmp_path: Path, steps: int, said: str) -> None:
    folders = []
    for run in range(2):
        builder = TraceBuilder(tmp_path / str(run), level="step")
        for _ in range(steps):
            builder.step()
        folders.append(builder.close())
    comparison = compare(*folders)
    assert comparison.verdict is Verdict.INCONCLUSIVE
    (trouble,) = comparison.trouble
    assert trouble.identifier == "nothing-recorded" and trouble.message.startswith(said)


def test_records_in_only_one_run_count_as_different(tmp_path: Path) -> None:
    comparison = compared(tmp_path, extra=4)
    assert comparison.step_history is not None and comparison.step_history.steps is not None
    assert comparison.step_history.steps[2] == StepSpan(2, 2, 7, 6)


def test_the_whole_run_is_counted_even_if_all_else_is_known(tmp_path: Path) -> None:
    comparison = compared(tmp_path, num_steps=100, differs_from=0)
    assert comparison.step_history is not None and comparison.step_history.steps is not None
    assert comparison.step_history.steps[-1] == StepSpan(99, 99, 3, 2)


def test_counting_alone_ends_after_a_maximum_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "_MOST_COUNTED_ALONE", 40)

    def write(builder: TraceBuilder, run: int) -> None:
        for step in range(100):
            made = builder.add("aten::a", outputs=[f"{step} in run {run}"])
            builder.add("determinism::loss", [made], [f"{step} in run {run}"], role=Role.LOSS)
            builder.step({"w": made})

    folders = []
    for run in range(2):
        builder = TraceBuilder(tmp_path / str(run))
        write(builder, run)
        folders.append(builder.close())
    comparison = compare(*folders)
    assert comparison.step_history is not None and comparison.step_history.steps is not None
    assert 10 < len(comparison.step_history.steps) < 20


def test_counting_alone_finds_records_that_only_one_run_has(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        for step in range(8):
            made = builder.add("aten::a", outputs=[f"{step} in run {run}"])
            for _ in range(run if step == 5 else 0):
                builder.add("aten::only", [made], ["x"])
            builder.add("determinism::loss", [made], [f"{step} in run {run}"], role=Role.LOSS)
            builder.step({"w": made})

    folders = []
    for run in range(2):
        builder = TraceBuilder(tmp_path / str(run))
        write(builder, run)
        folders.append(builder.close())
    comparison = compare(*folders)
    assert comparison.step_history is not None
    assert comparison.step_history.steps == [
        StepSpan(step, step, 2 + (step == 5), 2 + (step == 5)) for step in range(8)
    ]


def test_equal_runs_have_no_step_counts(tmp_path: Path) -> None:
    comparison = compared(tmp_path, differs_from=99)
    assert comparison.verdict is Verdict.SAME
    assert comparison.step_history is None or comparison.step_history.steps is None


def test_the_runs_that_were_compared_are_named(tmp_path: Path) -> None:
    def run(name: str, value: str) -> Path:
        builder = TraceBuilder(tmp_path / name)
        builder.step({"w": builder.add("aten::a", outputs=[value])})
        return builder.close()

    comparison = compare(run("a", "x"), run("b", "x"), run("c", "y"))
    assert comparison.step_history is not None and comparison.step_history.runs == (1, 3)


def chunk_of_steps(*steps: int) -> Chunk:
    columns = {"step": np.array(steps, dtype=np.int32), "role": np.full(len(steps), Role.OP, dtype=np.int8)}
    return Chunk(0, len(steps), columns, {})


def test_very_many_steps_share_entries() -> None:
    counts = StepCounts()
    for start in range(0, 10_000, 500):
        counts.add_equal(chunk_of_steps(*range(start, start + 500)))
    spans = StepCounts.spans([counts])
    assert len(spans) <= MOST_ENTRIES
    assert sum(span.records for span in spans) == 10_000
    assert spans[0].step == 0 and spans[-1].last_step == 9999
    assert all(one.last_step + 1 == other.step for one, other in pairwise(spans))


def test_processes_are_counted_together() -> None:
    few, many = StepCounts(), StepCounts()
    few.add_equal(chunk_of_steps(0, 0, 1))
    many.add_equal(chunk_of_steps(*range(4000)))
    assert StepCounts.spans([few, few]) == [StepSpan(0, 0, 4, 0), StepSpan(1, 1, 2, 0)]
    spans = StepCounts.spans([few, many])
    assert spans[0].records == 3 + spans[0].last_step + 1
    assert sum(span.records for span in spans) == 4003


def test_without_counts_there_are_no_spans() -> None:
    assert StepCounts.spans([]) == []
    assert StepCounts.spans([StepCounts()]) == []
