"""Child processes that take their tasks from one queue: which process did a task does not matter, but its result does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from determinism.types import Role, Verdict
from tests.streams import compared, first_of
from tests.traces import TraceBuilder

SHARES = (("a", "b"), ("c",)), (("c", "a"), ("b",))
"""The tasks that each of two processes did, in each run."""


def write(
    builder: TraceBuilder, shares: Sequence[Sequence[str]], *, name: str = "ForkProcess-{}", result: str = "sum"
) -> None:
    for number, tasks in enumerate(shares, start=1):
        child = builder.beside(f"main.{name.format(number)}")
        for task in tasks:
            received = child.add("determinism::load", outputs=[f"task {task}"], site=("/work/queue.py", 1))
            made = child.add("aten::tanh", [received], [f"done {task}"], site=("/work/queue.py", 2))
            child.add("determinism::numpy", [made], [f"done {task}"], role=Role.ESCAPE, site=("/work/queue.py", 2))
    made = builder.add("aten::sum", outputs=[result])
    builder.add("determinism::tolist", [made], [result], role=Role.ESCAPE)


def test_the_same_tasks_done_by_different_processes_are_the_same(tmp_path: Path) -> None:
    assert compared(tmp_path, lambda b, run: write(b, SHARES[run])).verdict is Verdict.SAME


def test_a_different_task_is_a_difference(tmp_path: Path) -> None:
    other = (("c", "a"), ("B",))
    first = first_of(compared(tmp_path, lambda b, run: write(b, (SHARES[0], other)[run])))
    assert first.process.startswith("main.ForkProcess-")


def test_a_task_in_only_one_run_is_a_difference(tmp_path: Path) -> None:
    fewer = (("c", "a"), ())
    assert compared(tmp_path, lambda b, run: write(b, (SHARES[0], fewer)[run])).verdict is Verdict.DIFFERENT


def test_a_different_result_in_the_main_process_is_a_difference(tmp_path: Path) -> None:
    first = first_of(compared(tmp_path, lambda b, run: write(b, SHARES[run], result=f"sum {run}")))
    assert first.process == "main"


@pytest.mark.parametrize("name", ["rank-{}", "trainer-{}"])
def test_processes_with_their_own_names_do_not_share_work(name: str, tmp_path: Path) -> None:
    assert compared(tmp_path, lambda b, run: write(b, SHARES[run], name=name)).verdict is Verdict.DIFFERENT
