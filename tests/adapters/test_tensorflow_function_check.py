"""`determinism.check(fn)` with TensorFlow: each call starts from the same variables and generators."""

from __future__ import annotations

import random
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import determinism
from determinism.session import seeding
from determinism.types import Kind, Verdict

VARIABLE = tf.Variable([1.0, 2.0])


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    put_back = seeding.capture_states()
    keras.utils.set_random_seed(3)
    yield
    put_back()


@tf.function
def added() -> tf.Tensor:
    VARIABLE.assign_add([1.0, 1.0])
    return tf.cumsum(VARIABLE) + tf.random.uniform([2])


def test_a_function_that_changes_a_variable_and_draws_is_the_same() -> None:
    added()
    before = VARIABLE.numpy().tolist()
    assert determinism.check(lambda: added(), runs=3).verdict is Verdict.SAME
    assert VARIABLE.numpy().tolist() == before


def test_a_training_step_of_a_keras_model_is_the_same() -> None:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse")
    comparison = determinism.check(model.train_on_batch, np.ones((8, 3), np.float32), np.ones((8, 2), np.float32))
    assert comparison.verdict is Verdict.SAME
    assert comparison.recorded.steps == 1


def _fit(sizes: list[int]) -> list[np.ndarray]:
    model = keras.Sequential([keras.layers.Dense(size) for size in sizes])
    model.compile("adam", "mse")
    model.fit(np.ones((8, 3), np.float32), np.ones((8, 1), np.float32), batch_size=4, verbose=0)
    return model.get_weights()


def test_models_that_are_built_in_each_run_have_the_same_names() -> None:
    counter = keras.backend.get_uid("dense")
    assert determinism.check(lambda: _fit([4, 1])).verdict is Verdict.SAME
    assert keras.backend.get_uid("dense") == counter + 1


def test_a_model_with_different_layers_each_time_is_different() -> None:
    sizes = [1]

    def fit() -> list[np.ndarray]:
        return _fit([*(random.SystemRandom().randrange(2, 1000) for _ in range(3)), *sizes])

    first = determinism.check(fit).first_divergence
    assert first is not None


def test_a_number_from_the_operating_system_is_different() -> None:
    first = determinism.check(lambda: tf.cumsum(tf.fill([2], random.SystemRandom().random()))).first_divergence
    assert first is not None
    assert first.kind is Kind.DATA


def test_a_gradient_that_varies_is_different() -> None:
    boxes = tf.constant(np.random.default_rng(0).random((256, 4)), tf.float32)

    def gradient() -> tf.Tensor:
        images = tf.ones([2, 64, 64, 8])
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.reduce_sum(tf.image.crop_and_resize(images, boxes, [0] * 256, [48, 48]) ** 2)
        return tape.gradient(loss, images)

    for _ in range(60):  # on a busy machine, threads may run in turns for a while
        first = determinism.check(gradient).first_divergence
        if first is not None:
            break
    assert first is not None
    assert (first.kind, first.op, first.phase) == (Kind.OP, "tf::CropAndResizeGradImage", "backward")
