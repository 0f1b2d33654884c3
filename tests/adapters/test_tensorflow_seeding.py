"""`determinism.seed` with TensorFlow and Keras."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

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


def drawn() -> list[float]:
    in_function = tf.function(lambda: tf.random.normal([1]))
    return [
        float(tf.random.uniform([1])[0]),
        float(in_function()[0]),
        float(keras.initializers.GlorotUniform()((2, 2))[0, 0]),
        float(keras.random.uniform((1,))[0]),
        random.random(),
        np.random.rand(),
    ]


def test_the_same_seed_gives_the_same_numbers() -> None:
    determinism.seed(1)
    first = drawn()
    determinism.seed(1)

    assert drawn() == first
    assert len(set(first)) == len(first)


@pytest.mark.parametrize("place", [{"rank": 1}, {"epoch": 1}, {"task": "train"}, {"worker": 0}])
def test_a_different_place_gives_different_numbers(place: dict[str, Any]) -> None:
    determinism.seed(1)
    first = drawn()
    determinism.seed(1, **place)

    assert not set(drawn()) & set(first)


def test_generators_of_python_and_numpy_are_restored() -> None:
    tf.random.set_seed(7)
    tf.random.uniform([1])
    keras.random.uniform((1,))
    restore = seeding.capture_states()
    expected = drawn()[4:]
    restore()
    determinism.enable(seed=1).restore()

    assert drawn()[4:] == expected


def test_generators_with_the_same_name_draw_the_same_numbers() -> None:
    seeds = determinism.seed(1)
    first = [float(seeds.tensorflow(name).uniform([1])[0]) for name in ("a", "b", "a")]

    assert first[0] == first[2] != first[1]
    assert float(seeds.at(epoch=1).tensorflow("a").uniform([1])[0]) != first[0]


def test_a_registered_generator_is_seeded_with_the_others() -> None:
    seeds = determinism.seed(1)
    own = seeds.register(tf.random.Generator.from_seed(5))
    first = own.uniform([3]).numpy().tolist()
    seeds.begin(epoch=1)
    assert own.uniform([3]).numpy().tolist() != first
    seeds.begin(epoch=0)
    assert own.uniform([3]).numpy().tolist() == first


def test_the_callback_begins_each_epoch_of_fit() -> None:
    class Drawing(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.found: list[list[float]] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.found.append(drawn())

    def fitted(first_epoch: int) -> list[list[float]]:
        seeds = determinism.seed(1)
        model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        drawing = Drawing()
        model.fit(
            np.ones((8, 3)), np.ones((8, 1)), epochs=3, initial_epoch=first_epoch, verbose=0,
            callbacks=[seeds.keras_callback(), drawing],
        )  # fmt: skip
        assert seeds.streams.task == "train" and seeds.streams.epoch == 2
        return drawing.found

    full = fitted(0)

    assert fitted(2) == full[2:]
    assert len({tuple(numbers) for numbers in full}) == 3
