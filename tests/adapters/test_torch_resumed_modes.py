"""State that no checkpoint holds: the mode of a model, and the order of the parameters in its optimizer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from determinism.resume.unsaved import unsaved
from determinism.session import seeding
from tests.resumed_runs import INPUTS, Training, compared, lacking


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


class Skipping(torch.nn.Module):
    """Skips its dropout at random."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.drop(values) if random.random() < 0.5 else values


def through(make: Callable[[], torch.nn.Module], frozen: bool = False) -> Training:
    """Train with a module that behaves differently in training mode; if frozen, it is in evaluation mode in the full run."""

    def training(file: Path, run: str, fault: str) -> object:
        random.seed(3)
        middle = make()
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), middle, torch.nn.Linear(4, 2)).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if run == "resumed":
            saved = torch.load(file, weights_only=False)
            model.load_state_dict(saved["model"])
            torch.set_rng_state(saved["torch"])
            if fault != "python":
                random.setstate(saved["python"])
            model.train(fault != "evaluating")
        if frozen and not (run == "resumed" and fault == "training"):
            middle.eval()
        for step in range(3 if run == "resumed" else 0, 3 if run == "first" else 8):
            optimizer.zero_grad()
            model(INPUTS[step : step + 4]).pow(2).mean().backward()
            optimizer.step()
        if run == "first":
            states = {"torch": torch.get_rng_state(), "python": random.getstate()}
            torch.save({"model": model.state_dict(), **states}, file)
        return model

    return training


@pytest.mark.parametrize("make", [torch.nn.Dropout, lambda: torch.nn.BatchNorm1d(4), torch.nn.RReLU])
def test_a_model_that_is_left_in_evaluation_mode_is_named(tmp_path: Path, make: Callable[[], torch.nn.Module]) -> None:
    (missing,) = unsaved(compared(tmp_path, through(make), "evaluating"))

    assert missing.identifier == "training-mode"
    assert "model.train()" in missing.fix and f"in '1', called at {__file__}:" in missing.fix


def test_a_part_that_should_stay_in_evaluation_mode_is_named(tmp_path: Path) -> None:
    (missing,) = unsaved(compared(tmp_path, through(torch.nn.Dropout, frozen=True), "training"))

    assert missing.identifier == "training-mode"
    assert "Call eval()" in missing.fix


@pytest.mark.parametrize("frozen", [False, True])
def test_the_same_mode_is_not_named(tmp_path: Path, frozen: bool) -> None:
    process = compared(tmp_path, through(torch.nn.Dropout, frozen=frozen))

    assert process.result.divergence is None, process.result.divergence
    assert lacking(process) == []


def test_a_module_that_is_called_at_random_is_not_a_matter_of_mode(tmp_path: Path) -> None:
    process = compared(tmp_path, through(Skipping), "python")

    assert process.result.divergence is not None
    assert lacking(process) == ["rng-python"]


def in_groups(kind: str, rates: tuple[float, float]) -> Training:
    """Train two layers of the same shape, each in a separate parameter group."""

    def training(file: Path, run: str, fault: str) -> object:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
        layers = [model[0], model[2]]
        if run == "resumed" and fault == "order":
            layers.reverse()
        groups = [{"params": layer.parameters(), "lr": rate} for layer, rate in zip(layers, rates, strict=True)]
        optimizer = getattr(torch.optim, kind)(groups, lr=0.1)
        if run == "resumed":
            saved = torch.load(file)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        for step in range(3 if run == "resumed" else 0, 3 if run == "first" else 6):
            optimizer.zero_grad()
            model(INPUTS[step : step + 4]).pow(2).mean().backward()
            optimizer.step()
        if run == "first":
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        return model, optimizer

    return training


GROUPED = [
    ("Adam", (0.1, 0.1), "order", ["optimizer-order"]),
    ("SGD", (0.1, 0.2), "order", ["optimizer-order"]),
    ("SGD", (0.1, 0.1), "order", []),
    ("Adam", (0.1, 0.2), "", []),
]


@pytest.mark.parametrize(("kind", "rates", "fault", "parts"), GROUPED)
def test_parameter_groups_in_a_different_order_are_named_if_it_matters(
    tmp_path: Path, kind: str, rates: tuple[float, float], fault: str, parts: list[str]
) -> None:
    """If all parameters have the same state and options, their order makes no difference."""
    process = compared(tmp_path, in_groups(kind, rates), fault)
    found = unsaved(process)

    assert [missing.identifier for missing in found] == parts
    assert (process.result.divergence is None) == (not parts), process.result.divergence
    assert all(sorted(re.findall(r"(\d)\.\w+ that of (\d)", missing.fix))[0] == ("0", "2") for missing in found)
