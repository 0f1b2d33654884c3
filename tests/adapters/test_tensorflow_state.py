"""`determinism.state` with TensorFlow and Keras."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest
import tensorflow as tf

import determinism
from determinism.errors import StateError
from determinism.session import seeding
from determinism.state import capture, from_bytes, restore


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore_states = seeding.capture_states()
    yield
    restore_states()


def drawn(own: tf.random.Generator) -> list[float]:
    return [
        float(tf.random.uniform([1])[0]),
        float(tf.random.get_global_generator().normal([1])[0]),
        float(own.normal([1])[0]),
        float(keras.random.normal((1,))[0]),
        float(keras.initializers.GlorotUniform()((2, 2))[0, 0]),
    ]


def test_restored_generators_draw_the_same_numbers() -> None:
    determinism.seed(1)
    own = tf.random.Generator.from_seed(1)
    drawn(own)
    state = capture(own=own)
    expected = [drawn(own), drawn(own)]
    determinism.seed(2)

    restore(from_bytes(state.to_bytes()), own=own)
    assert [drawn(own), drawn(own)] == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_tensors_and_variables_are_restored(dtype: str) -> None:
    tensor = tf.cast(tf.constant([[0.0, 1.5]]), dtype)
    values = [tensor, tf.Variable(tensor)]
    found = from_bytes(capture(values=values).to_bytes())["values"]

    assert [one.dtype.name for one in found] == [dtype, dtype]
    assert all(bool(tf.reduce_all(one == tensor)) for one in found)


def test_draws_within_a_tf_function_are_a_gap() -> None:
    assert any("tf.function" in gap for gap in capture().gaps)


class Training:
    """A model with dropout, trained by an optimizer with momentum."""

    def __init__(self, seed: int) -> None:
        determinism.seed(seed)
        self.model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dropout(0.4), keras.layers.Dense(1)]
        )
        self.optimizer = keras.optimizers.Adam(0.05)
        self.model.compile(self.optimizer, "mse")
        self.optimizer.build(self.model.trainable_variables)

    def steps(self, count: int) -> list[list[float]]:
        features = tf.reshape(tf.linspace(-1.0, 1.0, 32), (8, 4))
        for _ in range(count):
            self.model.train_on_batch(features, tf.reduce_sum(features, axis=1, keepdims=True))
        return [
            value.numpy().ravel().tolist() for value in (*self.model.trainable_variables, *self.optimizer.variables)
        ]


def test_a_restored_keras_model_trains_as_if_it_had_not_stopped() -> None:
    whole = Training(1)
    whole.steps(3)
    state = from_bytes(capture(model=whole.model, optimizer=whole.optimizer).to_bytes())
    expected = whole.steps(3)

    resumed = Training(2)
    restore(state, model=resumed.model, optimizer=resumed.optimizer)
    assert resumed.steps(3) == expected


def test_without_its_optimizer_a_restored_model_trains_differently() -> None:
    whole = Training(1)
    whole.steps(3)
    state = capture(model=whole.model, optimizer=whole.optimizer)
    expected = whole.steps(3)

    resumed = Training(2)
    restore(state, allow=["optimizer"], model=resumed.model)
    assert resumed.steps(3) != expected


def test_an_optimizer_that_is_not_built_is_refused() -> None:
    training = Training(1)
    state = capture(optimizer=training.optimizer)
    with pytest.raises(StateError, match="optimizer was a keras Adam with"):
        restore(state, optimizer=keras.optimizers.Adam(0.05))


def batches(factor: int = 1, *, parallel: int = 2) -> tf.data.Iterator:
    data = tf.data.Dataset.range(40).shuffle(16, seed=3, reshuffle_each_iteration=True)
    data = data.map(lambda number: number * factor, num_parallel_calls=parallel).batch(4)
    return iter(data.repeat(2).prefetch(2))


@pytest.mark.parametrize("consumed", [0, 3, 13])
def test_an_iterator_of_tf_data_continues_at_its_position(consumed: int) -> None:
    iterator = batches()
    for _ in range(consumed):
        next(iterator)
    state = capture(data=iterator)
    expected = [batch.numpy().tolist() for batch in iterator]
    other = batches()
    restore(from_bytes(state.to_bytes()), data=other)

    assert len(expected) == 20 - consumed
    assert [batch.numpy().tolist() for batch in other] == expected


def test_an_iterator_of_different_elements_is_refused() -> None:
    state = capture(data=batches())
    with pytest.raises(StateError, match=r"data was a tf\.data\.Iterator of"):
        restore(state, data=iter(tf.data.Dataset.from_tensors([1.0])))


def test_an_iterator_that_tensorflow_cannot_save_is_refused_with_the_reason() -> None:
    iterator = iter(tf.data.Dataset.range(4).map(lambda _: tf.random.uniform([])))
    with pytest.raises(StateError, match="RandomUniform is stateful") as raised:
        capture(data=iterator)

    assert raised.value.identifier == "state-iterator-unsaveable"
