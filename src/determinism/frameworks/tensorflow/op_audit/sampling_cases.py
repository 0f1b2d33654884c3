"""Ops that draw numbers, tell the time, or give elements of a data set in the order in which they are ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from determinism.frameworks.tensorflow.op_audit.case import Case

_DRAWN = 1 << 12
_ELEMENTS = 256


def cases() -> Iterator[Case]:
    """All of them."""
    yield Case("tf.random.normal", "no seed was set", _calls(lambda: tf.random.normal([_DRAWN])))
    yield Case("tf.random.normal", "seeded before each call", _calls(_seeded(lambda: tf.random.normal([_DRAWN]))))
    yield Case(
        "tf.random.normal",
        "dropout, seeded before each call",
        _calls(_seeded(lambda: tf.nn.dropout(tf.ones([_DRAWN]), 0.5))),
    )
    yield Case("tf.keras.initializers.GlorotUniform", "seeded before each call", _calls(_initialized))
    yield Case("tf.random.Generator.from_non_deterministic_state", "a new generator", _calls(_new_generator))
    yield Case("tf.raw_ops.NonDeterministicInts", "64 numbers", _calls(_drawn_from_system), ("int64",))
    for seed in (1, 0):
        yield Case(
            "tf.image.sample_distorted_bounding_box",
            f"seed={seed}, 64 boxes, seeded before each call",
            _calls(_seeded(partial(_boxes, seed))),
        )
    yield Case("tf.timestamp", "the time", _calls(lambda: tf.timestamp()), ("float64",))
    yield from _pipelines()


def _calls(run: Callable[[], Any]) -> Callable[[Any], Callable[[], Any]]:
    """A case without inputs."""
    return lambda inputs: run


def _seeded(run: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        tf.random.set_seed(7)
        return run()

    return call


def _initialized() -> tf.Tensor:
    tf.keras.utils.set_random_seed(7)
    return tf.keras.initializers.GlorotUniform()((64, 64))


def _new_generator() -> tf.Tensor:
    return tf.random.Generator.from_non_deterministic_state().normal([_DRAWN])


def _drawn_from_system() -> tf.Tensor:
    return tf.raw_ops.NonDeterministicInts(shape=[64], dtype=tf.int64)


def _boxes(seed: int) -> Any:
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    return [tf.image.sample_distorted_bounding_box([640, 480, 3], whole, seed=seed) for _ in range(64)]


def _pipelines() -> Iterator[Case]:
    for ordered in (False, None):
        words = f"deterministic={ordered}, num_parallel_calls=2"
        yield Case("tf.data.Dataset.map", words, _calls(partial(_mapped, ordered)), ("int64",))
        yield Case("tf.data.Dataset.interleave", words, _calls(partial(_interleaved, ordered)), ("int64",))
    yield Case("tf.data.Dataset.shuffle", "no seed was set", _calls(lambda: _listed(_range().shuffle(64))), ("int64",))
    yield Case(
        "tf.data.Dataset.shuffle",
        "seeded before each call",
        _calls(_seeded(lambda: _listed(_range().shuffle(64)))),
        ("int64",),
    )
    yield Case("tf.data.Dataset.shard", "2 shards", _calls(lambda: _listed(_range().shard(2, 0))), ("int64",))


def _range() -> tf.data.Dataset:
    return tf.data.Dataset.range(_ELEMENTS)


def _listed(dataset: tf.data.Dataset) -> tf.Tensor:
    # Not by batches: they would be filled in order.
    return tf.constant(list(dataset.as_numpy_iterator()))


def _mapped(ordered: bool | None) -> tf.Tensor:
    return _listed(_range().map(lambda x: x * 2, num_parallel_calls=2, deterministic=ordered))


def _interleaved(ordered: bool | None) -> tf.Tensor:
    return _listed(
        tf.data.Dataset.range(8).interleave(
            lambda x: tf.data.Dataset.range(x * 32, x * 32 + 32),
            cycle_length=2,
            num_parallel_calls=2,
            deterministic=ordered,
        )
    )
