"""The callback for Transformers and the helper for Accelerate: runs resume bit-exactly, steps are those of the Trainer, and settings made too late are reported."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments, set_seed

import determinism
from determinism.errors import StateError, UsageError
from determinism.integrations import accelerate
from determinism.integrations.hugging_face import DeterminismCallback
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
    with settings_put_back(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="(transformers|accelerate|torch)")
        yield


def train(*args: Any, **options: Any) -> str:
    return str(program("hugging_face_training").train(*args, **options))


def train_with_accelerate(*args: Any, **options: Any) -> str:
    return str(program("accelerate_training").train(*args, **options))


@pytest.mark.parametrize(
    ("step", "options"),
    [
        pytest.param(4, {}, id="middle of the first epoch"),
        pytest.param(10, {}, id="middle of a later epoch"),
        pytest.param(6, {"save_strategy": "epoch"}, id="end of an epoch"),
        pytest.param(4, {"gradient_accumulation_steps": 2}, id="gradients of two batches"),
        pytest.param(
            2,
            {"gradient_accumulation_steps": 2, "dataloader_drop_last": True, "lr_scheduler_type": "cosine"},
            id="the batch that was fetched ahead is the last",
        ),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(step: int, options: dict[str, Any], tmp_path: Path) -> None:
    full, again = resumed(train, tmp_path, f"checkpoint-{step}", save_steps=step, num_train_epochs=2, **options)
    assert again == full


def test_without_the_callback_it_ends_with_different_bits(tmp_path: Path) -> None:
    full, again = resumed(train, tmp_path, "checkpoint-4", with_callback=False, save_steps=4, num_train_epochs=1)
    assert again != full


def test_two_recordings_are_the_same_and_have_the_steps_of_the_trainer(tmp_path: Path) -> None:
    comparison = recorded_twice(train, tmp_path, gradient_accumulation_steps=4, save_strategy="no", num_train_epochs=2)
    assert comparison.verdict == "same"
    assert (comparison.recorded.steps, comparison.recorded.steps_by) == (4, "determinism.step")


def test_an_unseeded_draw_is_found(tmp_path: Path) -> None:
    unseeded = torch.Generator()

    class Noisy(DeterminismCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            with torch.no_grad():
                given["model"].layers[0].bias += 1e-3 * torch.rand(8, generator=unseeded)

    training = program("hugging_face_training")
    usual, training.DeterminismCallback = training.DeterminismCallback, Noisy
    try:
        comparison = recorded_twice(
            lambda *args: (unseeded.seed(), train(*args, num_train_epochs=1, save_strategy="no")), tmp_path
        )
    finally:
        training.DeterminismCallback = usual
    assert comparison.verdict == "different"
    assert comparison.first_divergence is not None
    assert (comparison.first_divergence.kind, comparison.first_divergence.step) == ("rng", 0)


def trainer_of(folder: Path, model: Any, callback: DeterminismCallback, **options: Any) -> Trainer:
    arguments = TrainingArguments(
        str(folder), max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", **options
    )
    training = program("hugging_face_training")
    return Trainer(
        model, arguments, train_dataset=training.Images(), data_collator=training.collate, callbacks=[callback]
    )


def test_a_model_that_was_built_before_seeding_is_reported(tmp_path: Path) -> None:
    scramble()
    while torch.seed() < 2**53:  # about one random seed in 2,048, which counts as set by the program
        pass
    model = program("hugging_face_training").Model()
    with pytest.warns(TrainingWarning, match=r"built before DeterminismCallback was created.*\(trainer-seeded-late\)"):
        trainer_of(tmp_path, model, DeterminismCallback(seed=1))


def test_a_model_that_was_built_after_seeding_is_not_reported(tmp_path: Path) -> None:
    scramble()
    torch.seed()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        callback = DeterminismCallback(seed=1)
        trainer_of(tmp_path, program("hugging_face_training").Model(), callback)
        scramble()
        set_seed(3)
        model = program("hugging_face_training").Model()
        trainer_of(tmp_path, model, DeterminismCallback(), full_determinism=True)


def test_full_determinism_that_overrides_warn_only_is_reported(tmp_path: Path) -> None:
    callback = DeterminismCallback(seed=1, warn_only=True)
    model = program("hugging_face_training").Model()
    with pytest.warns(TrainingWarning, match=r"TrainingArguments.*\(trainer-overrides\)"):
        trainer_of(tmp_path, model, callback, full_determinism=True)


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "full", save_steps=4, num_train_epochs=1)
    place = tmp_path / "full" / "checkpoint-4" / "trainer_state.json"
    document = json.loads(place.read_text(encoding="utf-8"))
    for damaged in ("?", "AAAA"):
        document["stateful_callbacks"]["DeterminismCallback"]["attributes"]["saved"] = damaged
        place.write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(StateError, match=r"determinism state in trainer_state\.json"):
            train(tmp_path / "again", place.parent, num_train_epochs=1)


def test_the_callback_that_the_trainer_creates_from_a_checkpoint_resumes_too(tmp_path: Path) -> None:
    full, again = resumed(
        train,
        tmp_path,
        "checkpoint-4",
        save_steps=4,
        num_train_epochs=1,
        restore_callback_states_from_checkpoint=True,
    )
    assert again == full


# Accelerate.


@pytest.mark.parametrize(
    ("step", "options"),
    [
        pytest.param(4, {}, id="middle of the first epoch"),
        pytest.param(10, {}, id="middle of a later epoch"),
        pytest.param(12, {}, id="last batch of an epoch"),
        pytest.param(4, {"accumulate": 2}, id="gradients of two batches"),
        pytest.param(8, {"pairs": True}, id="two loaders"),
        pytest.param(10, {"seedable": True}, id="a sampler that is seeded by the epoch"),
        pytest.param(8, {"num_workers": 1}, id="workers", marks=pytest.mark.thorough("trainers")),
    ],
)
def test_a_run_with_accelerate_resumes_with_the_same_bits(step: int, options: dict[str, Any], tmp_path: Path) -> None:
    full, again = resumed(train_with_accelerate, tmp_path, str(step), **options)
    assert again == full


def test_accelerate_alone_ends_with_different_bits(tmp_path: Path) -> None:
    full, again = resumed(train_with_accelerate, tmp_path, "4", registered=False)
    assert again != full


def test_two_recordings_with_accelerate_are_the_same_and_have_a_step_per_optimizer_step(tmp_path: Path) -> None:
    comparison = recorded_twice(train_with_accelerate, tmp_path, accumulate=2)
    assert comparison.verdict == "same"
    assert (comparison.recorded.steps, comparison.recorded.steps_by) == (9, "optimizer")


def test_several_processes_are_refused_with_advice() -> None:
    with pytest.raises(UsageError, match=r"2 processes train together.*\.state"):
        accelerate.register(SimpleNamespace(num_processes=2, process_index=1))


def test_a_loader_that_changed_is_refused(tmp_path: Path) -> None:
    train_with_accelerate(tmp_path)
    training = program("accelerate_training")
    usual, training.Images.__len__ = training.Images.__len__, lambda self: 20
    try:
        with pytest.raises(StateError, match="samples was 22, but is 20 here"):
            train_with_accelerate(tmp_path / "again", tmp_path / "4")
    finally:
        training.Images.__len__ = usual


def test_the_ledger_is_written_and_names_a_changed_step(tmp_path: Path) -> None:
    def training(path: Path, is_planted: bool) -> Any:
        made: list[Any] = []

        class Changed(DeterminismCallback):
            def __init__(self, seed: int) -> None:
                super().__init__(seed, ledger=path)
                made.append(self)

            def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                if is_planted and state.global_step == PLANTED:
                    with torch.no_grad():
                        given["model"].layers[0].bias += 1

        module = program("hugging_face_training")
        usual, module.DeterminismCallback = module.DeterminismCallback, Changed
        try:
            train(tmp_path / "checkpoints", save_strategy="no", num_train_epochs=1)
        finally:
            module.DeterminismCallback = usual
        return made[0].ledger

    check_ledger(training, tmp_path, "loss")


def test_the_ledger_of_a_loop_with_accelerate_names_a_changed_step(tmp_path: Path) -> None:
    def training(path: Path, is_planted: bool) -> Any:
        determinism.enable(seed=1)
        accelerator = Accelerator(cpu=True)
        model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        loader: Any = DataLoader(TensorDataset(torch.arange(64.0).reshape(-1, 4)), batch_size=2, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters()), loader)
        with accelerate.ledger(path) as steps:
            for number, (images,) in enumerate(loader):
                accelerator.backward(model(images * (2 if is_planted and number == PLANTED else 1)).mean())
                optimizer.step()
                optimizer.zero_grad()
        return steps

    check_ledger(training, tmp_path, "loss")


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ({"image": torch.rand(8)} for _ in range(8))


class Images(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(image).mean()}


def saved_warnings(folder: Path, data: Any, *, ranks: int = 1) -> list[str]:
    """The warnings that are given while two checkpoints are saved."""
    callback = DeterminismCallback(seed=1)
    arguments = TrainingArguments(
        str(folder), max_steps=2, save_steps=1, per_device_train_batch_size=2, use_cpu=True, report_to=[], disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Trainer(Images(), arguments, train_dataset=data, callbacks=[callback]).train()
        if ranks > 1:
            several: Any = SimpleNamespace(world_size=ranks)
            state: Any = SimpleNamespace(global_step=0, stateful_callbacks={})
            callback._has_warned = False
            callback.on_train_begin(several, state, None)
            callback.on_save(several, state, None)
            callback.on_save(several, state, None)
            callback.on_train_end(several, state, None)
    return [str(one.message) for one in found if issubclass(one.category, TrainingWarning)]


def test_state_missing_from_a_checkpoint_is_reported_once_at_saving(tmp_path: Path) -> None:
    plain = [{"image": torch.rand(8)} for _ in range(8)]
    assert saved_warnings(tmp_path / "plain", plain) == []
    (said,) = saved_warnings(tmp_path / "stream", Stream())
    assert said.startswith("A checkpoint is saved, and the data set is an IterableDataset")
    (said,) = saved_warnings(tmp_path / "ranks", plain, ranks=2)
    assert said.startswith("2 processes train together, and trainer_state.json is one file")


@pytest.mark.parametrize("seed", [1, 2**32, 2**40 + 7])
def test_a_large_seed_counts_as_a_seed(seed: int, tmp_path: Path) -> None:
    scramble()
    torch.manual_seed(seed)
    callback = DeterminismCallback()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        callback._training.check("the trainer", Images().modules())


def test_the_documented_program_resumes_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    full = run_documented("Hugging Face Trainer")
    assert pattern([full, run_documented("Hugging Face Trainer", "checkpoints/checkpoint-16")]) == pattern(
        documented_outputs("Hugging Face Trainer")
    )


def test_the_documented_program_for_accelerate_resumes_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    full = run_documented("Accelerate")
    assert pattern([full, run_documented("Accelerate", "checkpoints/16")]) == pattern(documented_outputs("Accelerate"))


@pytest.mark.thorough("trainers")
@pytest.mark.parametrize(("name", "steps"), [("hugging_face_training", 18), ("accelerate_training", 18)])
def test_the_check_command_finds_it_the_same_and_counts_steps(name: str, steps: int, tmp_path: Path) -> None:
    assert checked(tmp_path, name) == (0, "same", steps)
