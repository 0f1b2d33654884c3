"""The callback for Keras: runs resume bit-exactly after an epoch, batches are steps, and settings made too late are reported."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from determinism.errors import StateError, UsageError
from determinism.integrations.keras import DeterminismCallback
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
    return str(program("keras_training").train(*args, **options))


@pytest.mark.parametrize(
    ("epoch", "options"),
    [
        pytest.param(0, {}, id="after the first epoch"),
        pytest.param(1, {"arrays": True}, id="arrays that are shuffled"),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(epoch: int, options: dict[str, Any], tmp_path: Path) -> None:
    full, again = resumed(train, tmp_path, f"{epoch}.state", **options)
    assert again == full


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_without_the_callback_it_ends_with_different_bits(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "0.state").touch()
    full, again = resumed(train, tmp_path, "0.state", with_callback=False)
    assert again != full


def test_two_recordings_are_the_same_and_have_a_step_per_batch(tmp_path: Path) -> None:
    comparison = recorded_twice(train, tmp_path)
    assert comparison.verdict == "same"
    assert (comparison.recorded.steps, comparison.recorded.steps_by) == (9, "determinism.step")


def test_an_unseeded_draw_is_found(tmp_path: Path) -> None:
    class Noisy(DeterminismCallback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            noise = [random.SystemRandom().random() for _ in range(8)]
            bias = self.model.layers[0].bias
            bias.assign_add(tf.constant(noise, dtype="float32"))

    training = program("keras_training")
    usual, training.DeterminismCallback = training.DeterminismCallback, Noisy
    try:
        comparison = recorded_twice(train, tmp_path)
    finally:
        training.DeterminismCallback = usual
    assert comparison.verdict == "different"
    assert comparison.first_divergence is not None
    assert comparison.first_divergence.step == 0


def fitted(callback: DeterminismCallback, model: Any) -> list[str]:
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(np.zeros((2, 3)), np.zeros((2, 1)), verbose=0, shuffle=False, callbacks=[callback])
    return [str(one.message) for one in found if issubclass(one.category, TrainingWarning)]


def model_of() -> Any:
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])


def test_only_missing_and_late_seeds_are_reported() -> None:
    scramble()
    tf.random.set_seed(None)
    model = model_of()
    (said,) = fitted(DeterminismCallback(seed=1), model)
    assert "built before DeterminismCallback was created" in said
    assert fitted(DeterminismCallback(seed=1), model_of()) == []
    scramble()
    tf.random.set_seed(None)
    (said,) = fitted(DeterminismCallback(), model_of())
    assert "Give DeterminismCallback a seed" in said
    keras.utils.set_random_seed(1)
    assert fitted(DeterminismCallback(), model_of()) == []


def test_a_run_that_cannot_be_resumed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without path="):
        DeterminismCallback(seed=1, resume=True)
    with pytest.raises(StateError, match=r"absent\.state cannot be read"):
        fitted(DeterminismCallback(seed=1, path=tmp_path / "absent.state", resume=True), model_of())
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    fitted(DeterminismCallback(seed=1, path=tmp_path / "run.state"), unbuilt)
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(UsageError, match=r"has no variables yet.*keras\.layers\.Input"):
        fitted(DeterminismCallback(seed=1, path=tmp_path / "run.state", resume=True), unbuilt)


def test_the_ledger_is_written_and_names_a_changed_step(tmp_path: Path) -> None:
    def training(path: Path, is_planted: bool) -> Any:
        callback = DeterminismCallback(seed=1, ledger=path)

        class Changed(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                if is_planted and batch == PLANTED:
                    self.model.layers[0].bias.assign_add(tf.ones(4))

        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        images = np.arange(64, dtype="float32").reshape(16, 4)
        model.fit(images, images.sum(1), batch_size=2, epochs=1, verbose=0, callbacks=[callback, Changed()])
        return callback.ledger

    check_ledger(training, tmp_path, "optimizer")


def test_the_documented_program_resumes_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    full = run_documented("Keras")
    (tmp_path / "run.state").unlink()
    monkeypatch.setenv("EPOCHS", "2")
    two = run_documented("Keras")
    monkeypatch.delenv("EPOCHS")
    assert pattern([full, two, run_documented("Keras")]) == pattern(documented_outputs("Keras"))


@pytest.mark.thorough("tensorflow")
def test_the_check_command_finds_it_the_same_and_counts_steps(tmp_path: Path) -> None:
    assert checked(tmp_path, "keras_training") == (0, "same", 9)
