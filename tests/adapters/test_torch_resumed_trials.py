"""A trial restores the generators before the first step of the resumed run, even if that run evaluates before it trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from determinism.comparison.result import Comparison
from determinism.resume.launch import compare_resume_runs
from determinism.run_spec import RunSpec
from determinism.session import seeding
from determinism.session.record import recording
from determinism.trace.opening import open_trace
from determinism.types import Verdict
from tests.resumed_runs import INPUTS

SAVED_AT, STEPS = 3, 6


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


def evaluate(model: torch.nn.Module, how: str) -> None:
    """Evaluate in evaluation mode, or without gradients, or both."""
    model.train(how == "no_grad")
    batches = [[INPUTS[:8]]] if how == "tensor" else DataLoader(TensorDataset(INPUTS), 8, shuffle=how == "shuffled")
    with torch.set_grad_enabled(how == "with gradients"):
        print(sum(model(batch).square().sum().item() for (batch,) in batches))
    model.train()


def training(file: Path, run: str, how: str) -> object:
    """Evaluate, then train from the beginning or from the middle of an epoch. The generator's state is not saved."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if run == "resumed":
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    evaluate(model, how)
    if how == "never in training mode":
        model = model.eval()
        model[1].train()
    steps = range(SAVED_AT if run == "resumed" else 0, SAVED_AT if run == "first" else STEPS)
    for number, (batch,) in enumerate(DataLoader(TensorDataset(INPUTS), batch_size=2)):
        if number in steps:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    if run == "first":
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return model, optimizer


def compared(folder: Path, how: str, moment: str | None) -> Comparison:
    back = {"from": str(folder / "first"), "which": ["rng-torch"], "moment": moment}
    requests = {"first": {"keep": True}, "resumed": {"watch": True} if moment is None else back}
    for run in ("full", "first", "resumed"):
        torch.manual_seed(8 if run == "resumed" else 7)
        with recording(RunSpec(folder / run, generators=requests.get(run))):
            training(folder / "checkpoint", run, how)
    return compare_resume_runs(*(open_trace(folder / run) for run in ("full", "first", "resumed")))[0]


@pytest.mark.parametrize("how", ["tensor", "shuffled", "no_grad", "with gradients", "never in training mode"])
def test_the_generator_is_restored_after_the_evaluation(tmp_path: Path, how: str) -> None:
    comparison = compared(tmp_path, how, "batch")

    assert comparison.verdict is Verdict.SAME, comparison.report()


def test_without_a_trial_the_generator_is_named(tmp_path: Path) -> None:
    comparison = compared(tmp_path, "shuffled", None)

    assert [missing.identifier for missing in comparison.missing or ()] == ["rng-torch"]
