"""Steps of programs that update parameters without an optimizer: a step ends before updated parameters are used again.

The recorder looks for optimizers among all objects of a process, so all programs run in a separate one without others.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import determinism
from determinism.run_spec import RECORDER_VARIABLE
from determinism.trace.opening import open_trace
from determinism.types import Level, Role
from tests.e2e.commands import run
from tests.torch_runs import rows

_BATCHES = [torch.full((4, 3), 0.1 * number) for number in range(1, 6)]


def _weights() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((3, 2), 0.5, requires_grad=True), torch.full((2, 1), 0.25, requires_grad=True)


def in_place() -> None:
    first, second = _weights()
    for batch in _BATCHES:
        (batch @ first @ second).square().mean().backward()
        with torch.no_grad():
            for weight in (first, second):
                weight -= 0.1 * weight.grad
                weight.grad = None


def by_data_of_a_module() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    for number, batch in enumerate(_BATCHES):
        model(batch + number * torch.eye(4, 3)).square().mean().backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        model.zero_grad()
        with torch.no_grad():
            model(batch)


def by_new_leaves() -> None:
    weight = torch.full((3, 1), 0.5, requires_grad=True)
    for batch in _BATCHES:
        (batch @ weight).square().mean().backward()
        weight = (weight - 0.1 * weight.grad).detach().requires_grad_()


def by_data_from_grad() -> None:
    first, second = _weights()
    for batch in _BATCHES:
        gradients = torch.autograd.grad((batch @ first @ second).square().mean(), [first, second])
        for weight, gradient in zip((first, second), gradients, strict=True):
            weight.data = weight.data - 0.1 * gradient


def after_two_backwards() -> None:
    first, second = _weights()
    for batch in _BATCHES:
        output = batch @ first @ second
        output.mean().backward(retain_graph=True)
        output.square().mean().backward()
        with torch.no_grad():
            for weight in (first, second):
                weight -= 0.1 * weight.grad
                weight.grad = None


def with_checkpoints() -> None:
    first, second = _weights()
    for batch in _BATCHES:
        hidden = torch.utils.checkpoint.checkpoint(torch.tanh, batch @ first, use_reentrant=True)
        torch.utils.checkpoint.checkpoint(torch.square, hidden @ second, use_reentrant=True).mean().backward()
        with torch.no_grad():
            for weight in (first, second):
                weight -= 0.1 * weight.grad
                weight.grad = None


def without_updates() -> None:
    weight = torch.full((3, 1), 0.5, requires_grad=True)
    for batch in _BATCHES:
        (batch @ weight).square().mean().backward()


def with_an_optimizer_that_waits() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in _BATCHES:
        (model(batch).square().mean() / 5).backward()
        with torch.no_grad():
            model.weight.clamp_(-1, 1)
    optimizer.step()


def with_an_optimizer_and_a_penalty() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in _BATCHES:
        optimizer.zero_grad()
        model(batch).mean().backward()
        between = (batch * 0.5).requires_grad_()
        (gradient,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        gradient.square().mean().backward()
        optimizer.step()


def by_steps_of_its_own() -> None:
    first, second = _weights()
    for batch in _BATCHES:
        (batch @ first @ second).square().mean().backward()
        with torch.no_grad():
            first -= 0.1 * first.grad
        determinism.step()


PROGRAMS: dict[Callable[[], None], tuple[str | None, int]] = {
    in_place: ("update", 5),
    by_data_of_a_module: ("update", 5),
    by_new_leaves: ("update", 5),
    by_data_from_grad: ("update", 5),
    with_checkpoints: ("update", 5),
    after_two_backwards: ("update", 5),
    without_updates: (None, 0),
    with_an_optimizer_that_waits: ("optimizer", 1),
    with_an_optimizer_and_a_penalty: ("optimizer", 5),
    by_steps_of_its_own: ("determinism.step", 5),
}
"""What the steps are counted by, and how many end."""


def steps_of(program: Callable[[], None], level: Level) -> dict[str, Any]:
    """What the steps of a program are counted by, how many ended, and the step of each loss."""
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        with determinism.record(Path(folder) / "trace", level=level):
            program()
        [process] = open_trace(Path(folder) / "trace").processes
        losses = [row.step for row in rows(Path(folder) / "trace") if row.role is Role.LOSS]
        return {"by": process.steps_by, "steps": process.extent[1], "losses": losses}


def main() -> None:
    """Print the steps of all programs, with either recorder, as JSON."""
    found = {}
    for os.environ[RECORDER_VARIABLE] in ("native", "python"):
        for level in Level:
            for program in PROGRAMS:
                key = f"{program.__name__} {level.value} {os.environ[RECORDER_VARIABLE]}"
                found[key] = steps_of(program, level)
    print(json.dumps(found))


@pytest.fixture(scope="module")
def steps() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-c", "from tests.adapters import test_torch_updates as t; t.main()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("level", Level, ids=str)
@pytest.mark.parametrize("recorder", ["native", "python"])
def test_steps_are_the_iterations_of_the_loop(
    steps: dict[str, dict[str, Any]], program: Callable[[], None], level: Level, recorder: str
) -> None:
    by, number = PROGRAMS[program]
    found = steps[f"{program.__name__} {level.value} {recorder}"]
    assert (found["by"], found["steps"]) == (by, number)
    if by == "update":
        assert sorted(set(found["losses"])) in ([], [0, 1, 2, 3, 4])


NARROWED = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(6, 1)
inputs = torch.randn(16, 6)
for step in range(12):
    (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
    rate = 0.05 if step != 7 else float(torch.empty(1).uniform_(generator=torch.Generator().manual_seed(torch.seed())))
    for parameter in model.parameters():
        parameter.data -= rate * parameter.grad
        parameter.grad = None
"""


def test_a_difference_is_narrowed_to_its_step_and_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NARROWED)
    finished = run(tmp_path, "narrow", "--no-explain", "--json", "report.json", "--", sys.executable, "train.py")
    assert finished.status == 1, finished.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    first = report["first_divergence"]
    assert (first["step"], first["site"]["line"]) == (7, 9)
    assert (report["narrowing"]["step"], report["narrowing"]["pinned"]) == (7, True)
