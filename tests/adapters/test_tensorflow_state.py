"""`determinism.state` with TensorFlow and Keras."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest
import tensorflow as tf

import determinism
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


def test_all_generators_draw_the_same_again() -> None:
    determinism.seed(1)
    own = tf.random.Generator.from_seed(1)
    drawn(own)
    state = capture(own=own)
    expected = [drawn(own), drawn(own)]
    determinism.seed(2)

    restore(from_bytes(state.to_bytes()), own=own)
    assert [drawn(own), drawn(own)] == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_tensors_and_variables_come_back(dtype: str) -> None:
    tensor = tf.cast(tf.constant([[0.0, 1.5]]), dtype)
    values = [tensor, tf.Variable(tensor)]
    found = from_bytes(capture(values=values).to_bytes())["values"]

    assert [one.dtype.name for one in found] == [dtype, dtype]
    assert all(bool(tf.reduce_all(one == tensor)) for one in found)


def test_what_a_function_has_drawn_is_a_gap() -> None:
    assert any("tf.function" in gap for gap in capture().gaps)
