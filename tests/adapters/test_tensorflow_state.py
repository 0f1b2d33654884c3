"""`determinism.state` with TensorFlow and Keras."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import determinism
from determinism.session import seeding


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


def drawn(own: tf.random.Generator) -> list[float]:
    return [
        float(tf.random.uniform([1])[0]),
        float(tf.random.stateless_uniform([1], own.make_seeds(1)[:, 0])[0]),
        float(keras.random.uniform((1,))[0]),
        float(tf.random.get_global_generator().uniform([1])[0]),
        random.random(),
        np.random.rand(),
    ]


@pytest.mark.parametrize("is_saved", [False, True])
def test_generators_go_on_where_they_were(is_saved: bool, tmp_path: Path) -> None:
    seeds = determinism.seed(1)
    tf.random.set_global_generator(tf.random.Generator.from_seed(3))
    own = seeds.register(tf.random.Generator.from_seed(5), name=f"own {is_saved}")
    drawn(own)
    state = determinism.state.capture(step=4)
    if is_saved:
        determinism.state.save(state, tmp_path / "a.state")
        state = determinism.state.load(tmp_path / "a.state")
    expected = [drawn(own) for _ in range(3)]
    place = determinism.state.restore(state)

    assert [drawn(own) for _ in range(3)] == expected
    assert len({number for numbers in expected for number in numbers}) == 18
    assert place == {"epoch": None, "step": 4}
    seeds.unregister(own)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_tensors_come_back(dtype: str, tmp_path: Path) -> None:
    tensor = tf.cast(tf.reshape(tf.range(6), (2, 3)), dtype)
    determinism.state.save({"a": tensor, "b": tf.Variable(tensor)}, tmp_path / "a.state")
    found = determinism.state.load(tmp_path / "a.state")

    for name in ("a", "b"):
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert bool(tf.reduce_all(found[name] == tensor))
