"""Programs that were started at the same time are paired, whichever began first."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.comparison.partners import alone
from determinism.trace.opening import open_trace
from determinism.types import Kind, Role, Verdict
from tests.streams import compared, first_of
from tests.traces import TraceBuilder


def train(builder: TraceBuilder, value: str) -> None:
    made = builder.add("aten::mul", outputs=[value], site=("/work/fit.py", 1))
    builder.add("determinism::tolist", [made], [value], role=Role.ESCAPE)


def sweep(builder: TraceBuilder, values: dict[str, str], order: str, *, arguments: bool = True) -> None:
    train(builder, "main")
    for number, name in enumerate(order, start=1):
        child = builder.beside(f"main.{number}", argv=["fit.py", name if arguments else "again"])
        train(child, values[name])
        threads = child.beside(f"main.{number}.threads", stream="threads", part_of=f"main.{number}", threads=["log"])
        threads.thread = 1
        train(threads, f"logged {name}")


@pytest.mark.parametrize("arguments", [True, False], ids=["by their arguments", "by what they did"])
def test_equal_children_in_a_different_order_are_the_same(tmp_path: Path, arguments: bool) -> None:
    values = {name: f"result {name}" for name in "abc"}
    orders = {0: "abc", 1: "cab"}
    assert compared(tmp_path, lambda b, run: sweep(b, values, orders[run], arguments=arguments)).verdict is Verdict.SAME


@pytest.mark.parametrize("arguments", [True, False], ids=["by their arguments", "by what they did"])
def test_the_child_that_differs_has_the_key_of_the_first_run(tmp_path: Path, arguments: bool) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        values = {name: f"result {name}" for name in "abc"} | {"b": f"result {run}"}
        sweep(b, values, {0: "abc", 1: "bca"}[run], arguments=arguments)

    comparison = compared(tmp_path, write)
    assert (first_of(comparison).process, first_of(comparison).kind) == ("main.2", Kind.OP)
    assert not comparison.divergences


def test_a_child_in_only_one_run_is_a_structural_difference(tmp_path: Path) -> None:
    values = {name: f"result {name}" for name in "abc"}
    first = first_of(compared(tmp_path, lambda b, run: sweep(b, values, {0: "abc", 1: "ca"}[run])))
    assert (first.kind, first.process) == (Kind.STRUCTURE, "main.2")


def test_only_unmistakable_processes_are_compared_during_a_run(tmp_path: Path) -> None:
    builder = TraceBuilder(tmp_path)
    sweep(builder, dict.fromkeys("ab", "result"), "ab")
    train(builder.beside("main.named"), "named")
    assert [process.key for process in alone(open_trace(builder.close()))] == ["main", "main.named"]
