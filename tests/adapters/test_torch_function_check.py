"""`determinism.check(fn)`, `determinism.record` and `determinism.step` in this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import determinism
from determinism.errors import StateError, UsageError
from determinism.trace.opening import open_trace
from determinism.types import Kind, Verdict


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> torch.Tensor:
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters())


def test_a_value_that_is_not_a_function_is_refused() -> None:
    with pytest.raises(UsageError, match="got 'train.py', so nothing was run"):
        determinism.check("train.py")  # type: ignore[arg-type]


def test_in_a_notebook_a_comparison_is_shown_in_one_line() -> None:
    comparison = determinism.check(torch.ones, 3)
    assert repr(comparison) == f"<Comparison {comparison}>" and "\n" not in repr(comparison)


def test_training_starts_from_the_same_state_each_time() -> None:
    model, optimizer = made()
    before = [parameter.detach().clone() for parameter in model.parameters()]

    comparison = determinism.check(train, model, optimizer, steps=2, runs=3)

    assert comparison.verdict is Verdict.SAME
    assert comparison.recorded.steps == 2
    assert len(comparison.runs) == 3
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_function_that_counts_in_a_file_differs(tmp_path: Path) -> None:
    counter = tmp_path / "counter"

    def drifting(x: torch.Tensor) -> torch.Tensor:
        counter.write_text(counter.read_text() + "x" if counter.exists() else "x")
        return x * len(counter.read_text())

    comparison = determinism.check(drifting, torch.ones(3))

    first = comparison.first_divergence
    assert comparison.verdict is Verdict.DIFFERENT and first is not None
    assert (first.kind, first.op) == (Kind.ARGUMENT, "aten::mul.Tensor")
    assert first.site is not None and first.site.code == "return x * len(counter.read_text())"
    assert "different" in str(comparison) and "aten::mul.Tensor" in str(comparison)


def test_a_returned_result_counts_as_read() -> None:
    def shapes(result_is_returned: bool) -> torch.Tensor | None:
        made = torch.full((2,), float(next(numbers)))
        return made if result_is_returned else None

    numbers = NumbersThatGoOn()
    assert determinism.check(shapes, True).verdict is Verdict.DIFFERENT
    unread = determinism.check(shapes, False)
    assert unread.verdict is Verdict.SAME and unread.dead_differences == 1
    assert determinism.check(shapes, False, strict=True).verdict is Verdict.DIFFERENT


class NumbersThatGoOn:
    """Keeps its position in an environment variable: process state that no snapshot restores."""

    def __next__(self) -> int:
        value = int(os.environ.get("NUMBERS_THAT_GO_ON", "0")) + 1
        os.environ["NUMBERS_THAT_GO_ON"] = str(value)
        return value


def test_a_closure_that_cannot_be_copied_is_an_error() -> None:
    generator = (number for number in range(3))

    with pytest.raises(StateError, match="generator"):
        determinism.check(lambda: torch.tensor(next(generator)))


def test_an_exception_of_the_function_is_raised_and_the_state_restored() -> None:
    values = [1]

    def failing() -> None:
        values.append(2)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        determinism.check(failing)
    assert values == [1]
    assert determinism.check(lambda: torch.ones(2)).verdict is Verdict.SAME


def test_once_step_is_called_only_it_counts(tmp_path: Path) -> None:
    model, optimizer = made()
    with determinism.record(tmp_path / "trace"):
        for _ in range(3):
            train(model, optimizer, steps=2)
            determinism.step()

    process = open_trace(tmp_path / "trace").processes[0]
    assert process.steps_by == "determinism.step"


def test_step_without_a_recording_does_nothing() -> None:
    determinism.step()


def test_recordings_do_not_nest(tmp_path: Path) -> None:
    with (
        determinism.record(tmp_path / "a"),
        pytest.raises(UsageError, match="already"),
        determinism.record(tmp_path / "b"),
    ):
        pass


def test_unknown_level_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'ops'.*step, module, op"), determinism.record(tmp_path / "a", level="ops"):
        pass
