"""Realistic programs, resumed with and without a fault: the missing state is named, and its consequences are not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from determinism.resume.unsaved import unsaved
from determinism.session import seeding
from determinism.types import Kind
from tests.resumed_runs import INPUTS, compared, lacking


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


def adversaries(file: Path, run: str, fault: str) -> object:
    """Train two networks with an optimizer each, and evaluate an average after every second step."""
    generator, critic = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
    average = copy.deepcopy(generator)
    parts = {"generator": generator, "critic": critic, "average": average}
    for name, module in (("first", critic), ("second", generator)):
        parts[name] = torch.optim.Adam(module.parameters(), lr=0.01)
    begin = 0
    if run == "resumed":
        begin = 4
        for name, state in torch.load(file).items():
            if name != fault:
                parts[name].load_state_dict(state)
    for step in range(begin, 4 if run == "first" else 8):
        made = generator(INPUTS[step : step + 4, :2])
        parts["first"].zero_grad()
        (critic(INPUTS[step : step + 4]) - critic(made.detach())).mean().backward()
        parts["first"].step()
        parts["second"].zero_grad()
        critic(made).pow(2).mean().backward()
        parts["second"].step()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), generator.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
            if step % 2:
                print(average(INPUTS[:, :2]).sum().item())
    if run == "first":
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    # The parts stay alive until the end of the run.
    return parts


def test_parts_first_used_before_the_checkpoint_are_not_a_difference(tmp_path: Path) -> None:
    """The resumed run first uses the average in its second step, and the second optimizer at the end of its first."""
    process = compared(tmp_path, adversaries)

    assert process.result.divergence is None, process.result.divergence
    assert lacking(process) == []


@pytest.mark.parametrize(("fault", "part"), [("second", "optimizer"), ("average", "model")])
def test_state_that_was_loaded_but_not_applied_is_recognized(tmp_path: Path, fault: str, part: str) -> None:
    (missing,) = unsaved(compared(tmp_path, adversaries, fault))

    assert (missing.identifier, missing.is_saved) == (part, True)
    assert missing.fix.startswith("It was saved, and loaded from the file, but")
    assert "weight" in missing.fix


def precise(file: Path, run: str, fault: str) -> object:
    """Save the weights unchanged, in half precision, or with keys that do not match."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if run == "resumed":
        model.load_state_dict(torch.load(file), strict=False)
    for step in range(3 if run == "resumed" else 0, 3 if run == "first" else 6):
        optimizer.zero_grad()
        model(INPUTS[step : step + 4]).pow(2).mean().backward()
        optimizer.step()
    if run == "first":
        states = model.state_dict()
        changed = {
            "half": lambda name: (name, states[name].half()),
            "keys": lambda name: (f"module.{name}", states[name]),
        }
        torch.save(dict(changed.get(fault, lambda name: (name, states[name]))(name) for name in states), file)
    return model


@pytest.mark.parametrize(("fault", "is_saved"), [("half", False), ("keys", True)])
def test_weights_that_are_not_restored_exactly_are_named(tmp_path: Path, fault: str, is_saved: bool) -> None:
    (missing,) = unsaved(compared(tmp_path, precise, fault))

    assert (missing.identifier, missing.is_saved) == ("model", is_saved)
    assert ("strict=False" if is_saved else "in a different precision") in missing.fix


def test_weights_that_are_restored_exactly_are_not_named(tmp_path: Path) -> None:
    assert lacking(compared(tmp_path, precise)) == []


def shuffled(file: Path, run: str, fault: str) -> object:
    """Train by epochs; every run begins with the same seed."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(INPUTS), batch_size=8, shuffle=True, generator=own if "own" in fault else None)
    if run == "resumed":
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        if fault != "global":
            torch.set_rng_state(saved["global"])
        if fault != "own":
            own.set_state(saved["own"])
    model.train(run != "resumed" or fault != "evaluating")
    for _ in range(2 if run == "resumed" else 0, 2 if run == "first" else 4):
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
    if run == "first":
        torch.save({"model": model.state_dict(), "global": torch.get_rng_state(), "own": own.get_state()}, file)
    return model


SHUFFLED = [
    ("", []),
    ("owned", []),
    ("global", ["rng-torch"]),
    ("own", ["rng-generator"]),
    ("evaluating", ["training-mode"]),
]


@pytest.mark.parametrize(("fault", "parts"), SHUFFLED)
def test_a_reshuffled_epoch_is_not_blamed_on_the_sampler_position(tmp_path: Path, fault: str, parts: list[str]) -> None:
    """Its first batch is also the full run's first. A model left in evaluation mode draws nothing and has lost no state."""
    process = compared(tmp_path, shuffled, fault)

    assert (process.result.divergence is None) == (fault in ("", "owned"))
    assert lacking(process) == parts


def counting(file: Path, run: str, fault: str) -> object:
    """Train with a loss weight that grows with each step and a hidden state that is carried from batch to batch."""
    model = torch.nn.LSTM(4, 3, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hidden, count = None, 0
    if run == "resumed":
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        hidden = None if fault == "hidden" else saved["hidden"]
        count = 0 if fault == "count" else saved["count"]
    for step in range(3 if run == "resumed" else 0, 3 if run == "first" else 6):
        optimizer.zero_grad()
        outputs, hidden = model(INPUTS[None, step : step + 4], hidden)
        hidden = tuple(one.detach() for one in hidden)
        (outputs.pow(2).mean() * (1 + count / 100)).backward()
        optimizer.step()
        count += 1
    if run == "first":
        torch.save({"model": model.state_dict(), "hidden": hidden, "count": count}, file)
    return model


@pytest.mark.parametrize(
    ("fault", "kind", "parts"),
    [("", None, []), ("count", Kind.ARGUMENT, ["number"]), ("hidden", Kind.DATA, ["carried-tensor"])],
)
def test_lost_state_that_the_program_keeps_itself_is_named(
    tmp_path: Path, fault: str, kind: Kind | None, parts: list[str]
) -> None:
    """Ops that continue from a different hidden state are not blamed."""
    process = compared(tmp_path, counting, fault)
    divergence = process.result.divergence

    assert (divergence and divergence.kind) == kind
    assert lacking(process) == parts


def by_hand(file: Path, run: str, fault: str) -> object:
    """Take samples in the program's own order, and stop in the middle of an epoch."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin, skew = 0, 0
    if run == "resumed":
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        begin, skew = saved["step"], 2 * (fault == "position")
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2))
    for step in range(begin, 3 if run == "first" else 5):
        at = 4 * (step - skew)
        optimizer.zero_grad()
        model(INPUTS[order[at : at + 4]]).pow(2).mean().backward()
        optimizer.step()
    if run == "first":
        torch.save({"model": model.state_dict(), "step": 3}, file)
    return model


@pytest.mark.parametrize(("fault", "parts"), [("", []), ("position", ["sampler-position"])])
def test_a_wrong_position_in_manual_sampling_is_named(tmp_path: Path, fault: str, parts: list[str]) -> None:
    assert lacking(compared(tmp_path, by_hand, fault)) == parts


def prepared(file: Path, run: str, fault: str) -> object:
    """Scale each batch before the model is called: after a step in the full run, at the beginning in the resumed run."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = list(DataLoader(TensorDataset(INPUTS), batch_size=4)) if fault == "list" else None
    loader = DataLoader(TensorDataset(INPUTS), batch_size=4)
    scale, begin = 0.5, 0
    if run == "resumed":
        model.load_state_dict(torch.load(file))
        scale, begin = 0.25 if fault == "scale" else 0.5, 1
    for _ in range(begin, 1 if run == "first" else 2):
        for (batch,) in batches or loader:
            optimizer.zero_grad()
            model(batch * scale + 1).pow(2).mean().backward()
            optimizer.step()
    if run == "first":
        torch.save(model.state_dict(), file)
    return model


@pytest.mark.parametrize(("fault", "parts"), [("", []), ("list", []), ("scale", ["number"])])
def test_batches_that_are_prepared_before_the_first_forward_are_compared(
    tmp_path: Path, fault: str, parts: list[str]
) -> None:
    process = compared(tmp_path, prepared, fault)

    assert (process.result.divergence is None) == (not parts), process.result.divergence
    assert lacking(process) == parts


def saving_now_and_then(file: Path, run: str, fault: str) -> object:
    """Save before every third step and train on; the resumed run repeats the steps after the checkpoint."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin = 0
    if run == "resumed":
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        if fault != "generator":
            torch.set_rng_state(saved["generator"])
        begin = saved["step"] - (fault == "step")
    for step in range(begin, 5 if run == "first" else 8):
        if run != "resumed" and step % 3 == 0:
            saved = {"model": model.state_dict(), "generator": torch.get_rng_state(), "step": step}
            torch.save(saved, file if run == "first" else file.with_suffix(".full"))
        optimizer.zero_grad()
        model(INPUTS[step : step + 4]).pow(2).mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("fault", "parts"), [("", []), ("generator", ["rng-torch"])])
def test_steps_after_the_checkpoint_are_compared_with_those_of_the_full_run(
    tmp_path: Path, fault: str, parts: list[str]
) -> None:
    process = compared(tmp_path, saving_now_and_then, fault)

    assert (process.steps_before, process.steps) == (3, 5)
    assert (process.result.divergence is None) == (not parts), process.result.divergence
    assert lacking(process) == parts


def saving_scores_too(file: Path, run: str, fault: str) -> object:
    """Save the checkpoint, and then a file that no run loads."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if run == "resumed":
        model.load_state_dict(torch.load(file))
    for step in range(4 if run == "resumed" else 0, 4 if run == "first" else 8):
        optimizer.zero_grad()
        model(INPUTS[step : step + 4]).pow(2).mean().backward()
        optimizer.step()
    if run == "first":
        torch.save(model.state_dict(), file)
        torch.save(torch.arange(9.0), file.with_suffix(".scores"))
    return model


def test_the_line_that_saved_the_loaded_file_is_named(tmp_path: Path) -> None:
    (missing,) = unsaved(compared(tmp_path, saving_scores_too))

    assert missing.identifier == "rng-torch"
    assert missing.site is not None
    assert "torch.save(model.state_dict(), file)" in missing.site.code


def test_a_repeated_step_is_a_difference(tmp_path: Path) -> None:
    """The resumed run begins one step too early, with the state saved after that step."""
    process = compared(tmp_path, saving_now_and_then, "step")

    assert process.result.divergence is not None
