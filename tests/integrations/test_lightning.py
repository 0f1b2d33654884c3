"""The callback for Lightning: runs resume bit-exactly, steps are counted as Lightning counts them, and settings made too late are reported."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import determinism
from determinism.errors import UsageError
from determinism.integrations.lightning import DeterminismCallback
from determinism.integrations.training import TrainingWarning
from determinism.session.record import is_recording
from determinism.state import from_dict
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

TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


@pytest.fixture(autouse=True)
def quiet_and_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    with settings_put_back(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="(pytorch_)?lightning")
        warnings.simplefilter("ignore", FutureWarning)
        yield


def train(*args: Any, **options: Any) -> str:
    return str(program("lightning_training").train(*args, **options))


@pytest.mark.parametrize(
    ("step", "options"),
    [
        pytest.param(4, {}, id="middle of the first epoch"),
        pytest.param(10, {"val_check_interval": 3}, id="middle of an epoch with validations"),
        pytest.param(4, {"accumulate_grad_batches": 2, "limit_val_batches": 0}, id="gradients of two batches"),
        pytest.param(12, {"limit_val_batches": 0}, id="last step of an epoch"),
        pytest.param(
            6,
            {"limit_val_batches": 0, "resumable": False},
            id="last step, with a plain loader",
            marks=pytest.mark.filterwarnings("ignore::determinism.integrations.training.TrainingWarning"),
        ),
        pytest.param(8, {"num_workers": 1}, id="workers", marks=pytest.mark.thorough("trainers")),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(step: int, options: dict[str, Any], tmp_path: Path) -> None:
    full, again = resumed(train, tmp_path, f"step={step}.ckpt", **options)
    assert again == full


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"with_callback": False, "resumable": False}, id="Lightning alone"),
        pytest.param({"resumable": False}, id="a loader that begins its epoch anew"),
    ],
)
@pytest.mark.filterwarnings("ignore::determinism.integrations.training.TrainingWarning")
def test_without_callback_or_resumable_loader_it_ends_with_different_bits(
    options: dict[str, Any], tmp_path: Path
) -> None:
    full, again = resumed(train, tmp_path, "step=4.ckpt", **options)
    assert again != full


def test_a_loader_that_restarts_its_epoch_is_reported_once(tmp_path: Path) -> None:
    with pytest.warns(TrainingWarning, match=r"determinism\.state\.resumable.*\(trainer-loader-restarts\)") as said:
        train(tmp_path, resumable=False)
    assert len([one for one in said if issubclass(one.category, TrainingWarning)]) == 1


class Pairs(lightning.LightningModule):
    """Trains on the batches of two loaders."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return sum(self.layers(images).mean() + targets.mean() for images, targets in batch.values())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def train_on_pairs(folder: Path, checkpoint: Path | None = None) -> str:
    callback, images = DeterminismCallback(seed=1), program("lightning_training").Images()
    model = Pairs()
    loaders = {
        str(size): determinism.state.resumable(DataLoader(images, batch_size=size, shuffle=True)) for size in (4, 6)
    }
    saver = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    options = {**TRAINER, "enable_checkpointing": True}
    trainer = lightning.Trainer(max_epochs=2, callbacks=[callback, saver], **options)
    trainer.fit(model, loaders, ckpt_path=checkpoint)
    return str([value.tolist() for value in model.state_dict().values()])


def test_two_loaders_resume_together(tmp_path: Path) -> None:
    full, again = resumed(train_on_pairs, tmp_path, "step=2.ckpt")
    assert again == full


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        images = program("lightning_training").Images()
        yield from (images[index] for index in range(8))


def test_a_loader_without_a_length_is_reported(tmp_path: Path) -> None:
    callback = DeterminismCallback(seed=1)
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    options = {**TRAINER, "enable_checkpointing": True}
    trainer = lightning.Trainer(max_epochs=1, callbacks=[callback, saver], **options)
    loader = determinism.state.resumable(DataLoader(Stream(), batch_size=2))
    with pytest.warns(TrainingWarning, match=r"fetched a batch that it has not trained on.*\(trainer-loader-ahead\)"):
        trainer.fit(program("lightning_training").Model(), loader, DataLoader(list(Stream()), batch_size=8))


def test_nothing_is_reported_if_nothing_is_wrong(tmp_path: Path) -> None:
    scramble()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        train(tmp_path)


def test_two_recordings_are_the_same_and_have_lightnings_steps(tmp_path: Path) -> None:
    comparison = recorded_twice(train, tmp_path, accumulate_grad_batches=2, max_epochs=2)
    assert comparison.verdict == "same"
    assert (comparison.recorded.steps, comparison.recorded.steps_by) == (6, "determinism.step")


def test_an_unseeded_draw_is_found(tmp_path: Path) -> None:
    class Noisy(DeterminismCallback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                pl_module.layers[0].bias += 1e-3 * torch.rand(8, generator=unseeded)

    unseeded = torch.Generator()
    training = program("lightning_training")
    usual, training.DeterminismCallback = training.DeterminismCallback, Noisy
    try:
        comparison = recorded_twice(lambda *args: (unseeded.seed(), train(*args, max_epochs=1)), tmp_path)
    finally:
        training.DeterminismCallback = usual
    assert comparison.verdict == "different"
    assert comparison.first_divergence is not None
    assert comparison.first_divergence.kind == "rng"
    assert comparison.first_divergence.site is not None
    assert comparison.first_divergence.site.function.endswith("on_train_batch_start")


class Rivals(lightning.LightningModule):
    """A model with two optimizers that step manually."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)])

    def training_step(self, batch: Any, number: int) -> None:
        for optimizer in self.optimizers():
            loss = self.layers[1](self.layers[0](batch[0])).mean() * torch.rand(())
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), 0.1) for layer in self.layers]


def loader_of(number: int) -> Any:
    data = TensorDataset(torch.arange(number * 8.0).reshape(-1, 4))
    return determinism.state.resumable(DataLoader(data, batch_size=2, shuffle=True))


def test_each_optimizer_ends_a_step_as_in_global_step(tmp_path: Path) -> None:
    callback = DeterminismCallback(seed=1)
    earlier = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1)
    model = Rivals()
    trainer = lightning.Trainer(max_epochs=1, callbacks=[callback], **TRAINER)
    with determinism.record(tmp_path / "trace"):
        for _ in range(2):
            earlier.step()
        trainer.fit(model, loader_of(3))
    assert trainer.global_step == 6
    comparison = determinism.compare(tmp_path / "trace", tmp_path / "trace")
    # The steps of the optimizer before the training, and those of the trainer.
    assert comparison.recorded.steps == 2 + trainer.global_step


def test_objects_given_to_the_callback_are_part_of_the_state(tmp_path: Path) -> None:
    noise = torch.Generator().manual_seed(3)
    callback = DeterminismCallback(seed=1, noise=noise)
    saved = from_dict(callback.state_dict())
    expected = torch.rand(3, generator=noise)
    determinism.state.restore(saved, noise=noise)
    assert torch.equal(torch.rand(3, generator=noise), expected)
    with pytest.raises(UsageError, match="offset=3 was passed"):
        DeterminismCallback(offset=3)


def test_the_callback_shows_its_settings() -> None:
    assert DeterminismCallback(seed=1).settings["torch.use_deterministic_algorithms"].after == "error"


def test_a_checkpoint_is_loaded_without_running_code(tmp_path: Path) -> None:
    train(tmp_path, limit_val_batches=0)
    loaded = torch.load(tmp_path / "step=4.ckpt", weights_only=True)
    assert from_dict(loaded["callbacks"]["DeterminismCallback"]).parts == []


def test_a_model_that_was_built_before_seeding_is_reported() -> None:
    scramble()
    while torch.seed() < 2**53:  # about one random seed in 2,048, which counts as set by the program
        pass
    model = Rivals()
    callback = DeterminismCallback(seed=1)
    with pytest.warns(TrainingWarning, match=r"built before DeterminismCallback was created.*\(trainer-seeded-late\)"):
        lightning.Trainer(max_steps=1, callbacks=[callback], **TRAINER).fit(model, loader_of(2))


def test_a_model_that_was_built_after_another_seeding_is_not_reported() -> None:
    lightning.seed_everything(1, verbose=False)
    model = Rivals()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        lightning.Trainer(max_steps=1, callbacks=[DeterminismCallback()], **TRAINER).fit(model, loader_of(2))


def test_a_training_without_a_seed_is_reported() -> None:
    scramble()
    while torch.seed() < 2**53:  # about one random seed in 2,048, which counts as set by the program
        pass
    callback = DeterminismCallback()
    with pytest.warns(TrainingWarning, match=r"Give DeterminismCallback a seed.*\(trainer-unseeded\)"):
        lightning.Trainer(max_steps=1, callbacks=[callback], **TRAINER).fit(Rivals(), loader_of(2))


@pytest.mark.parametrize(
    ("flag", "said"),
    [(False, "was 'error', and is now 'off'"), ("warn", "was 'error', and is now 'warn'"), (True, None), (None, None)],
)
def test_settings_that_the_trainer_overrides_are_reported(flag: Any, said: str | None) -> None:
    callback = DeterminismCallback(seed=1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        lightning.Trainer(max_steps=1, deterministic=flag, callbacks=[callback], **TRAINER).fit(Rivals(), loader_of(2))
    texts = [str(one.message) for one in found if issubclass(one.category, TrainingWarning)]
    assert [said in text for text in texts] == ([] if said is None else [True])


def test_each_rank_draws_different_numbers_and_saves_no_state() -> None:
    drawn = []
    for rank in (0, 1):
        callback = DeterminismCallback(seed=1)
        trainer: Any = SimpleNamespace(world_size=2, global_rank=rank)
        with pytest.warns(TrainingWarning, match=r"2 processes train together.*\(trainer-ranks\)"):
            callback.setup(trainer, Rivals(), "fit")
        drawn.append(torch.rand(1).item())
        assert callback.state_dict() == {}
    assert drawn[0] != drawn[1]


def test_the_callback_works_with_pytorch_lightning_too() -> None:
    import pytorch_lightning

    scramble()
    callback = DeterminismCallback(seed=1)

    class Other(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.layer(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = pytorch_lightning.Trainer(max_epochs=1, callbacks=[callback], **TRAINER)
    trainer.fit(Other(), loader_of(3))
    assert trainer.global_step == callback._training._num_counted == 3


def test_the_ledger_is_written_and_names_a_changed_step(tmp_path: Path) -> None:
    def training(path: Path, is_planted: bool) -> Any:
        callback = DeterminismCallback(seed=1, ledger=path)

        class Changed(lightning.Callback):
            def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
                if is_planted and trainer.global_step == PLANTED:
                    batch[0].mul_(2)

        trainer = lightning.Trainer(max_epochs=2, callbacks=[callback, Changed()], **TRAINER)
        trainer.fit(Whole(), loader_of(8))
        return callback.ledger

    check_ledger(training, tmp_path, "loss")


class Whole(lightning.LightningModule):
    """A model with one optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


def test_a_training_that_fails_leaves_no_recording(tmp_path: Path) -> None:
    class Failing(Whole):
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            raise ValueError("mine")

    callback = DeterminismCallback(seed=1, ledger=tmp_path / "train.golden")
    with pytest.raises(ValueError, match="mine"):
        lightning.Trainer(max_epochs=2, callbacks=[callback], **TRAINER).fit(Failing(), loader_of(8))
    assert not is_recording()
    assert not (tmp_path / "train.golden").exists()


def test_the_documented_program_resumes_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    full = run_documented("Lightning")
    assert pattern([full, run_documented("Lightning", "checkpoints/step=16.ckpt")]) == pattern(
        documented_outputs("Lightning")
    )


@pytest.mark.thorough("trainers")
def test_the_check_command_finds_it_the_same_and_counts_steps(tmp_path: Path) -> None:
    assert checked(tmp_path, "lightning_training") == (0, "same", 18)
