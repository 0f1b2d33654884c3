"""A resumed run that only reads different numbers, such as a running loss for its log, still trains like the full run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from determinism.comparison.result import Comparison
from determinism.resume.launch import compare_resume_runs, is_only_read
from determinism.session import seeding
from determinism.trace.opening import open_trace
from determinism.types import Verdict
from tests.resumed_runs import INPUTS, compared


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


def logging(file: Path, run: str, fault: str) -> object:
    """Print a running loss at the end, which is not in the checkpoint; a fault leaves out more."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    total, begin = torch.zeros(()), 0
    if run == "resumed":
        saved, begin = torch.load(file), 4
        model.load_state_dict(saved["model"])
        if fault != "optimizer":
            optimizer.load_state_dict(saved["optimizer"])
        if fault != "rng":
            torch.set_rng_state(saved["rng"])
        if fault == "none":
            total = saved["total"]
    for step in range(begin, 4 if run == "first" else 8):
        optimizer.zero_grad()
        loss = model(INPUTS[step : step + 4]).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            total += loss
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.lerp_(parameter if fault.startswith("average") else mean, 0.1)
    print(total.item())
    if fault == "average, read":
        print(average[0].norm().item())
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    if run == "first":
        torch.save({**state, "total": total}, file)
    elif fault == "saves":
        torch.save({**state, "total": total}, file.with_name("last"))
    return model, optimizer, average


def result(folder: Path, fault: str) -> Comparison:
    compared(folder, logging, fault)
    comparison, _ = compare_resume_runs(*(open_trace(folder / run) for run in ("full", "first", "resumed")))
    return comparison


def test_a_running_loss_that_is_only_printed_is_reported_as_such(tmp_path: Path) -> None:
    comparison = result(tmp_path, "")

    assert comparison.verdict is Verdict.DIFFERENT and is_only_read(comparison)
    (missing,) = comparison.missing or ()
    assert missing.identifier == "carried-tensor"
    assert "Nothing that was trained or saved differs" in missing.fix and __file__ in missing.fix


def test_a_running_loss_in_the_checkpoint_is_the_same(tmp_path: Path) -> None:
    comparison = result(tmp_path, "none")

    assert comparison.verdict is Verdict.SAME and not is_only_read(comparison)


@pytest.mark.parametrize("fault", ["optimizer", "rng", "average", "average, read", "saves"])
def test_more_than_a_number_that_is_read_is_reported_as_before(tmp_path: Path, fault: str) -> None:
    """An average of the weights may be used later; here the running loss, which is read first, hides it."""
    comparison = result(tmp_path, fault)

    assert comparison.verdict is Verdict.DIFFERENT and not is_only_read(comparison)
    assert all("Nothing that was trained or saved" not in missing.fix for missing in comparison.missing or ())


def without_torch_save(file: Path, run: str, fault: str) -> object:
    """Save the weights, but not the state of the optimizer, with safetensors."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    begin = 0
    if run == "resumed":
        model.load_state_dict(load_file(file))
        begin = 4
    for step in range(begin, 4 if run == "first" else 8):
        optimizer.zero_grad()
        model(INPUTS[step : step + 4]).square().mean().backward()
        optimizer.step()
    if run == "first":
        save_file(model.state_dict(), file)  # SAVES
    return model, optimizer


def test_the_line_that_saves_with_safetensors_is_named(tmp_path: Path) -> None:
    compared(tmp_path, without_torch_save)
    comparison, _ = compare_resume_runs(*(open_trace(tmp_path / run) for run in ("full", "first", "resumed")))
    (missing,) = comparison.missing or ()

    assert missing.identifier == "optimizer" and missing.site is not None
    assert (missing.site.file, missing.site.code.strip()) == (__file__, "save_file(model.state_dict(), file)  # SAVES")
