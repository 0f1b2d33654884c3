"""Flax, Optax and Orbax: runs resume bit-exactly in the middle of an epoch, and a part missing from a checkpoint changes the result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import determinism
from determinism.errors import StateError, UsageError
from determinism.integrations import flax
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


def train_nnx(*args: Any, **options: Any) -> str:
    return str(program("jax_training").train_nnx(*args, **options))


def linen(folder: Path, **options: Any) -> tuple[str, str]:
    """The results of an uninterrupted training, and of one resumed from its checkpoint in the middle of the second epoch."""
    train = program("jax_training").train_linen
    scramble()
    full = train(folder)
    scramble()
    return full, train(folder, 6, **options)


def test_a_train_state_in_orbax_resumes_with_the_same_bits(tmp_path: Path) -> None:
    full, again = linen(tmp_path)
    assert again == full


def test_a_train_state_alone_ends_with_different_bits(tmp_path: Path) -> None:
    full, again = linen(tmp_path, whole=False)
    assert again != full


@pytest.mark.parametrize("step", [2, 6])
def test_an_nnx_model_resumes_with_the_same_bits(step: int, tmp_path: Path) -> None:
    full, again = resumed(train_nnx, tmp_path, f"{step}.state")
    assert again == full


@pytest.mark.parametrize("left_out", ["optimizer", "loader", "model"])
def test_a_part_that_is_left_out_changes_the_result(left_out: str, tmp_path: Path) -> None:
    full, again = resumed(train_nnx, tmp_path, "6.state", left_out=left_out)
    assert again != full


def test_two_recordings_are_the_same_and_have_a_step_per_call(tmp_path: Path) -> None:
    comparison = recorded_twice(train_nnx, tmp_path)
    assert comparison.verdict == "same"
    assert (comparison.recorded.steps, comparison.recorded.steps_by) == (12, "determinism.step")


def test_an_unseeded_draw_is_found(tmp_path: Path) -> None:
    training = program("jax_training")
    usual = training.Loader.__iter__

    def noisy(self: Any) -> Iterator[Any]:
        for batch in usual(self):
            yield batch + np.frombuffer(os.urandom(4), "uint32").astype("float32")

    training.Loader.__iter__ = noisy
    try:
        comparison = recorded_twice(train_nnx, tmp_path)
    finally:
        training.Loader.__iter__ = usual
    assert comparison.verdict == "different"
    assert comparison.first_divergence is not None
    assert (comparison.first_divergence.kind, comparison.first_divergence.step) == ("data", 0)


def test_every_name_has_its_own_key() -> None:
    with pytest.raises(UsageError, match="no seeds are in force"):
        flax.keys("params")
    determinism.seed(1)
    first = flax.keys("params", "dropout")
    again = flax.keys("dropout", "noise", "params")
    data = {name: jax.random.key_data(key).tolist() for name, key in again.items()}
    assert {name: jax.random.key_data(key).tolist() for name, key in first.items()}.items() <= data.items()
    assert len({str(numbers) for numbers in data.values()}) == 3


class Small(nnx.Module):
    def __init__(self, width: int) -> None:
        self.layer = nnx.Linear(2, width, rngs=nnx.Rngs(0))


def test_a_model_of_a_different_shape_is_refused_with_both_shapes() -> None:
    saved = determinism.state.capture(model=flax.Saved(Small(3)))
    other = Small(4)
    before = np.asarray(other.layer.kernel[...])
    with pytest.raises(StateError, match=r"float32\[2, 3\], and here is float32\[2, 4\]"):
        determinism.state.restore(saved, model=flax.Saved(other))
    assert np.array_equal(before, np.asarray(other.layer.kernel[...]))


def test_a_train_state_is_restored_into_its_holder() -> None:
    state = TrainState.create(apply_fn=None, params={"weight": jax.numpy.ones(3)}, tx=optax.adam(0.1))
    training = flax.Saved(state)
    saved = determinism.state.capture(training=training)
    training.value = state.apply_gradients(grads={"weight": jax.numpy.ones(3)})
    determinism.state.restore(determinism.state.from_bytes(saved.to_bytes()), training=training)
    assert int(training.value.step) == 0
    assert training.value.params["weight"].tolist() == [1, 1, 1]
    with pytest.raises(StateError, match="saved from an object of flax, and this is one of nnx"):
        determinism.state.restore(saved, training=flax.Saved(Small(3)))


def test_the_ledger_of_a_loop_names_a_changed_step(tmp_path: Path) -> None:
    module = program("jax_training")
    step = flax.counted(module.linen_step)

    def training(path: Path, is_planted: bool) -> Any:
        determinism.enable(seed=1)
        model, keys = module.Linen(), flax.keys("params", "dropout")
        variables = model.init(keys, module.INPUTS)
        state = TrainState.create(apply_fn=model.apply, params=variables["params"], tx=module.OPTIMIZER)
        with flax.ledger(path) as steps:
            for number, inputs in module.batches(module.Loader(), 1):
                number = int(state.step)
                state = step(state, inputs * (2 if is_planted and number == PLANTED else 1), keys["dropout"])
        return steps

    check_ledger(training, tmp_path, "results")


def test_the_documented_program_resumes_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    full = run_documented("Flax and Orbax")
    assert pattern([full, run_documented("Flax and Orbax", "16")]) == pattern(documented_outputs("Flax and Orbax"))


@pytest.mark.thorough("jax")
def test_the_check_command_finds_it_the_same_and_counts_steps(tmp_path: Path) -> None:
    assert checked(tmp_path, "jax_training") == (0, "same", 12)
