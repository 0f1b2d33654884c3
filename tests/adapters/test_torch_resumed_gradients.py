"""Gradients that exist when a run is resumed: adding to zeros is not a difference, and lost gradients are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from determinism.session import seeding
from tests.resumed_runs import INPUTS, Training, compared, lacking


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


def accumulating(file: Path, run: str, fault: str) -> object:
    """Step after every fourth batch, and save after the sixth."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if run == "resumed":
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        for parameter, gradient in zip(model.parameters(), saved["gradients"], strict=True):
            parameter.grad = None if fault else gradient
    for batch in range(6 if run == "resumed" else 0, 6 if run == "first" else 16):
        model(INPUTS[batch : batch + 4]).pow(2).mean().backward()
        if batch % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    if run == "first":
        torch.save({"model": model.state_dict(), "gradients": [p.grad for p in model.parameters()]}, file)
    return model


@pytest.mark.parametrize(("fault", "parts"), [("", []), ("gradients", ["gradients"])])
def test_lost_gradients_of_a_step_that_had_begun_are_named(tmp_path: Path, fault: str, parts: list[str]) -> None:
    assert lacking(compared(tmp_path, accumulating, fault)) == parts


def zeroing(file: Path, run: str, fault: str) -> object:
    """Keep gradients and set them to zero: every backward except the first of a run adds to them."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if run == "resumed":
        model.load_state_dict(torch.load(file))
        if fault:
            model[2].bias.data[0] += 1e-3
    for step in range(3 if run == "resumed" else 0, 3 if run == "first" else 6):
        optimizer.zero_grad(set_to_none=False)
        model(INPUTS[step : step + 4]).pow(2).mean().backward()
        optimizer.step()
    if run == "first":
        torch.save(model.state_dict(), file)
    return model


@pytest.mark.parametrize("fault", ["", "bias"])
def test_gradients_that_are_set_to_zero_are_not_a_difference(tmp_path: Path, fault: str) -> None:
    divergence = compared(tmp_path, zeroing, fault).result.divergence

    assert (divergence is not None) == bool(fault), divergence
    assert divergence is None or (divergence.step, divergence.phase) == (3, "forward")


def clear(parameters: list[torch.Tensor], how: str) -> None:
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if how == "multiplied":
            parameter.grad.mul_(0)
        elif how == "kept":
            parameter.grad.mul_(0.5)
        else:
            parameter.grad.zero_()


def summing_up(batches: int, how: str) -> Training:
    """Accumulate the gradients of several batches for each step; every third step also uses a second head."""

    def training(file: Path, run: str, fault: str) -> object:
        body, head, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        model = torch.nn.ModuleList([body, head, other])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if run == "resumed":
            saved = torch.load(file)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            for parameter, gradient in zip(model.parameters(), saved["gradients"], strict=True):
                parameter.grad = gradient if fault == "saved" else None
        for step in range(3 if run == "resumed" else 0, 3 if run == "first" else 6):
            for batch in range(batches):
                hidden = body(INPUTS[step + batch : step + batch + 4]).tanh()
                loss = head(hidden).pow(2).mean()
                (loss + other(hidden).mean() if step % 3 == 1 else loss).backward()
            optimizer.step()
            clear(list(model.parameters()), how)
        if run == "first":
            gradients = [parameter.grad for parameter in model.parameters()]
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "gradients": gradients}
            torch.save(states, file)
        return model

    return training


@pytest.mark.parametrize(("batches", "how"), [(2, "set to zero"), (3, "multiplied")])
def test_accumulating_into_zeros_or_from_scratch_is_not_a_difference(tmp_path: Path, batches: int, how: str) -> None:
    """The head that is used only in some steps gets its first gradient in a later step."""
    divergence = compared(tmp_path, summing_up(batches, how)).result.divergence

    assert divergence is None, divergence


@pytest.mark.parametrize(("fault", "parts"), [("saved", []), ("lost", ["gradients"])])
def test_gradients_that_are_never_zero_must_be_restored(tmp_path: Path, fault: str, parts: list[str]) -> None:
    process = compared(tmp_path, summing_up(2, "kept"), fault)

    assert lacking(process) == parts
    assert (process.result.divergence is None) == (not parts)


def adversaries(file: Path, run: str, fault: str) -> object:
    """Train with two optimizers, the second stepping after the end of each step, and backward through both networks."""
    generator, critic = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
    parts = {"generator": generator, "critic": critic}
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.05) for module in (critic, generator)]
    if run == "resumed":
        for name, state in torch.load(file).items():
            parts[name].load_state_dict(state)
        generator.bias.data[0] += 1e-3 if fault else 0
    for step in range(3 if run == "resumed" else 0, 3 if run == "first" else 6):
        made = generator(INPUTS[step : step + 4, :2])
        optimizers[0].zero_grad(set_to_none=False)
        critic(INPUTS[step : step + 4]).mean().backward()
        (-critic(made.detach()).mean()).backward()
        optimizers[0].step()
        optimizers[1].zero_grad(set_to_none=False)
        for some in (made, generator(INPUTS[step : step + 4, 1:3])):
            critic(some).pow(2).mean().backward()
        optimizers[1].step()
    if run == "first":
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    return parts


@pytest.mark.parametrize("fault", ["", "bias"])
def test_two_optimizers_that_zero_gradients_differ_only_with_a_fault(tmp_path: Path, fault: str) -> None:
    divergence = compared(tmp_path, adversaries, fault).result.divergence

    assert (divergence is not None) == bool(fault), divergence
    assert divergence is None or (divergence.step, divergence.phase) == (3, "forward")
