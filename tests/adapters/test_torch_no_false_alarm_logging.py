"""Deterministic training compares as the same, even if it logs, evaluates and saves depending on the clock."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from determinism.types import Verdict
from tests.torch_runs import check_deterministic

PROGRAMS: list[Callable[[], Any]] = []
runs = itertools.count()


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_same(function: Callable[[], Any], tmp_path: Path) -> None:
    comparison = check_deterministic(function, tmp_path)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.recorded.records > 0


def train(report: Callable[..., Any], steps: int = 4) -> Any:
    """Train, calling `report` in every step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(steps):
        x = torch.randn(8, 4)
        loss = net(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        report(step, loss, x, net)
        optimizer.step()
    return net.state_dict(), loss


def every_other_run() -> bool:
    """True in every second run, as a condition on the clock may be."""
    return next(runs) % 2 == 0


@program
def logging_by_the_clock() -> Any:
    moment = every_other_run()

    def report(step: int, loss: Tensor, x: Tensor, net: nn.Module) -> None:
        if (step % 2 == 0) == moment:
            print(loss.item(), (net(x).detach() > 0).float().mean().item())

    # In training mode, the forward for the log would draw random numbers for dropout.
    return train(lambda step, loss, x, net: (net.eval(), report(step, loss, x, net), net.train()))


@program
def metrics_in_one_run_only() -> Any:
    moment = every_other_run()

    def report(step: int, loss: Tensor, x: Tensor, net: nn.Module) -> None:
        if moment:
            norms = torch.stack([parameter.grad.norm() for parameter in net.parameters()])
            print(norms, loss.detach().cpu().numpy(), norms.tolist(), f"{loss:.3f}", float(norms.max()))

    return train(report)


@program
def metrics_kept_in_tensors() -> Any:
    moment = every_other_run()
    total = torch.zeros(())

    def report(step: int, loss: Tensor, x: Tensor, net: nn.Module) -> None:
        if moment:
            total.add_(loss.detach())

    return train(report)


@program
def evaluation_in_one_run_only() -> Any:
    moment = every_other_run()

    def report(step: int, loss: Tensor, x: Tensor, net: nn.Module) -> None:
        if moment and step == 2:
            net.eval()
            with torch.no_grad():
                print("accuracy", (net(torch.ones(5, 4)) > 0).float().mean().item())
            net.train()

    return train(report)


@program
def checkpoint_by_the_clock() -> Any:
    moment = every_other_run()

    def report(step: int, loss: Tensor, x: Tensor, net: nn.Module) -> None:
        if moment and step == 1:
            with tempfile.TemporaryDirectory() as folder:
                torch.save(net.state_dict(), os.path.join(folder, f"{time.time()}.pt"))

    return train(report)


@program
def logging_by_the_clock_within_a_step() -> Any:
    moment, total = 3 + 4 * every_other_run(), torch.zeros(())
    for number in range(10):
        part = torch.arange(float(number + 3)).sum()
        if number == moment:
            print(part.item(), (part / 3).sqrt())
        total = total + part
    return total


@program
def times_printed() -> Any:
    began = time.time()
    return train(lambda step, loss, x, net: print(f"{step} {loss.item():.4f} after {time.time() - began:.6f} s"))


@program
def retries_until_it_works() -> Any:
    """Wait in a loop whose number of iterations depends on the clock, and whose tensors nothing reads."""
    count = 1 + 3 * every_other_run()
    for _ in range(count):
        torch.zeros(2).add_(1)
    torch.manual_seed(0)
    return train(lambda *_: None)
