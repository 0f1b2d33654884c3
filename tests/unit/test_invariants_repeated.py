"""Computations that a process performs twice, on traces that are written record by record."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.invariants.findings import GRAD_MODE, RECOMPUTATION
from determinism.invariants.launch import check_stored
from determinism.invariants.repeated import SpanOp, first_recomputed_differently
from determinism.trace.schema import CALLED_OP, CHECKPOINTED_OP, RECOMPUTED_OP, RETURNED_OP
from tests.traces import Ref, TraceBuilder

LINES = {"relu": 10, "mul": 11, "_to_copy": 12}


def forward(process: TraceBuilder, values: dict[str, str], mark: str, of: int | None = None) -> int:
    """Add a span whose ops return these values."""
    began = process.add(mark, () if of is None else (of,), ())
    for op, value in values.items():
        process.add(f"aten::{op}", (), (value,), site=("/work/train.py", LINES[op]))
    process.add(RETURNED_OP, (began,), ())
    return began


def test_an_op_that_is_recomputed_differently_is_named(tmp_path: Path) -> None:
    process = TraceBuilder(tmp_path / "run")
    first = forward(process, {"relu": "a", "mul": "b"}, CHECKPOINTED_OP)
    forward(process, {"relu": "a", "mul": "c"}, RECOMPUTED_OP, first)

    findings = check_stored(process.close())

    (violation,) = findings.violations
    assert (violation.invariant, violation.op) == (RECOMPUTATION, "aten::mul")
    assert violation.site is not None
    assert violation.site.line == LINES["mul"]


@pytest.mark.parametrize(
    "again",
    [
        pytest.param({"relu": "a", "mul": "b"}, id="the same"),
        pytest.param({"relu": "a"}, id="ended early"),
        pytest.param({"mul": "b"}, id="a result was kept"),
        pytest.param({"_to_copy": "x", "relu": "a", "mul": "b"}, id="a copy more"),
    ],
)
def test_an_equal_recomputation_is_not_reported(again: dict[str, str], tmp_path: Path) -> None:
    process = TraceBuilder(tmp_path / "run")
    first = forward(process, {"relu": "a", "mul": "b"}, CHECKPOINTED_OP)
    forward(process, again, RECOMPUTED_OP, first)

    findings = check_stored(process.close())

    assert (findings.violations, findings.compared[RECOMPUTATION]) == ([], 1)


def test_a_counter_that_is_incremented_twice_is_not_reported(tmp_path: Path) -> None:
    process = TraceBuilder(tmp_path / "run")
    counter = process.add("aten::zeros", (), ("0",))
    for mark, value in ((CHECKPOINTED_OP, "1"), (RECOMPUTED_OP, "2")):
        began = process.add(mark, (counter + 1,) if mark == RECOMPUTED_OP else (), ())
        process.add("aten::add_.Tensor", (counter,), (value,))
        process.add("aten::relu", (), ("a",))
        process.add(RETURNED_OP, (began,), ())

    assert check_stored(process.close()).violations == []


def test_which_of_equal_ops_were_kept_does_not_matter() -> None:
    first = [SpanOp((1, 7), (name,), False, number) for number, name in enumerate((b"a", b"b", b"c", b"d"))]

    assert first_recomputed_differently(first, [first[1], first[3]]) is None
    assert first_recomputed_differently(first, [first[3], first[1]]) == first[1]


def called(process: TraceBuilder, mode: str, value: str, *, inputs: str = "x", state: str | None = None) -> None:
    """Add a call of a module that returns a value."""
    began = process.add(CALLED_OP, (Ref(-1, digest=inputs),), ("settings",), arguments=f"{mode} Net")
    process.add("aten::mul", (), (value,), generators=() if state is None else (state,), site=("/work/net.py", 3))
    process.add(RETURNED_OP, (began,), (value,))


def test_a_call_under_no_grad_with_a_different_result_is_named(tmp_path: Path) -> None:
    process = TraceBuilder(tmp_path / "run")
    called(process, "no_grad", "a")
    called(process, "grad", "b")

    (violation,) = check_stored(process.close()).violations

    assert (violation.invariant, violation.what, violation.op) == (GRAD_MODE, "Net", "aten::mul")


@pytest.mark.parametrize(
    ("second", "compared"),
    [
        pytest.param({"mode": "grad", "value": "a"}, 1, id="equal"),
        pytest.param({"mode": "no_grad", "value": "b"}, 0, id="both without"),
        pytest.param({"mode": "grad", "value": "b", "inputs": "y"}, 0, id="other inputs"),
        pytest.param({"mode": "grad", "value": "b", "state": "s1"}, 0, id="random numbers"),
    ],
)
def test_other_calls_are_not_reported(second: dict[str, str], compared: int, tmp_path: Path) -> None:
    process = TraceBuilder(tmp_path / "run")
    called(process, "no_grad", "a")
    called(process, **second)

    findings = check_stored(process.close())

    assert (findings.violations, findings.compared[GRAD_MODE]) == ([], compared)
