"""The handler for PyTorch Ignite: runs resume bit-exactly, iterations are steps, and settings made too late are reported."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ignite.engine import Engine, Events

from determinism.errors import StateError
from determinism.integrations.ignite import DeterminismHandler
from determinism.integrations.training import TrainingWarning
from tests.integrations.training_runs import (
    PLANTED,
    check_ledger,
    checked,
    documented_outputs,
    pattern,
    program,
    recorded_twice,
    resumed,
    run_documented,
    scramble,
    settings_put_back,
)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with settings_put_back():
        yield


def train(*args: Any, **options: Any) -> str:
    return str(program("ignite_training").train(*args, **options))


@pytest.mark.parametrize(
    ("iteration", "options"),
    [
        pytest.param(4, {}, id="middle of the first epoch"),
        pytest.param(10, {}, id="middle of a later epoch"),
        pytest.param(12, {}, id="end of an epoch"),
        pytest.param(4, {"accumulate": 2}, id="gradients of two batches"),
        pytest.param(8, {"num_workers": 1}, id="workers", marks=pytest.mark.thorough("trainers")),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(iteration: int, options: dict[str, Any], tmp_path: Path) -> None:
    full, again = resumed(train, tmp_path, f"checkpoint_{iteration}.pt", **options)
    assert again == full


def test_without_the_handler_it_ends_with_different_bits(tmp_path: Path) -> None:
    full, again = resumed(train, tmp_path, "checkpoint_4.pt", with_handler=False)
    assert again != full


def test_two_recordings_are_the_same_and_have_a_step_per_iteration(tmp_path: Path) -> None:
    comparison = recorded_twice(train, tmp_path, accumulate=3)
    assert comparison.verdict == "same"
    assert (comparison.recorded.steps, comparison.recorded.steps_by) == (18, "determinism.step")


def test_an_unseeded_draw_is_found(tmp_path: Path) -> None:
    unseeded = torch.Generator()
    training = program("ignite_training")

    class Noisy(DeterminismHandler):
        def attach(self, engine: Engine, model: Any = None) -> None:
            super().attach(engine, model)
            engine.add_event_handler(Events.ITERATION_STARTED, lambda: self.disturb(model))

        def disturb(self, model: Any) -> None:
            with torch.no_grad():
                model[0].bias += 1e-3 * torch.rand(8, generator=unseeded)

    usual, training.DeterminismHandler = training.DeterminismHandler, Noisy
    try:
        comparison = recorded_twice(lambda *args: (unseeded.seed(), train(*args)), tmp_path)
    finally:
        training.DeterminismHandler = usual
    assert comparison.verdict == "different"
    assert comparison.first_divergence is not None
    assert (comparison.first_divergence.kind, comparison.first_divergence.step) == ("rng", 0)


def test_a_model_that_was_built_before_seeding_is_reported() -> None:
    scramble()
    while torch.seed() < 2**53:  # about one random seed in 2,048, which counts as set by the program
        pass
    model = torch.nn.Linear(2, 1)
    for handler, said in ((DeterminismHandler(seed=1), True), (DeterminismHandler(), False)):
        trainer = Engine(lambda engine, batch: None)
        handler.attach(trainer, model)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            trainer.run([1, 2])
        texts = [str(one.message) for one in found if issubclass(one.category, TrainingWarning)]
        assert ["trainer-seeded-late" in text for text in texts] == ([True] if said else [])


def test_a_state_with_different_parts_is_refused_and_changes_nothing() -> None:
    saved = DeterminismHandler(seed=1, noise=torch.Generator()).state_dict()
    handler = DeterminismHandler(seed=2)
    before = torch.get_rng_state()
    with pytest.raises(StateError, match="it holds noise, which was not given"):
        handler.load_state_dict(saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_ledger_is_written_and_names_a_changed_step(tmp_path: Path) -> None:
    def training(path: Path, is_planted: bool) -> Any:
        handler = DeterminismHandler(seed=1, ledger=path)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters())

        def update(engine: Engine, batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(batch * (2 if is_planted and engine.state.iteration == PLANTED + 1 else 1)).mean().backward()
            optimizer.step()

        engine = Engine(update)
        handler.attach(engine, model)
        engine.run(list(torch.arange(64.0).reshape(8, 2, 4)), max_epochs=1)
        return handler.ledger

    check_ledger(training, tmp_path, "loss")


def test_the_documented_program_resumes_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    full = run_documented("PyTorch Ignite")
    assert pattern([full, run_documented("PyTorch Ignite", "checkpoints/checkpoint_16.pt")]) == pattern(
        documented_outputs("PyTorch Ignite")
    )


@pytest.mark.thorough("trainers")
def test_the_check_command_finds_it_the_same_and_counts_steps(tmp_path: Path) -> None:
    assert checked(tmp_path, "ignite_training") == (0, "same", 18)
