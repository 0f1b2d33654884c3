"""`determinism.check_batch_invariance` with TensorFlow functions and models: their results are compared row by row."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import determinism
from determinism.types import Verdict

ROWS, WIDTH = 24, 8


def rows() -> tf.Tensor:
    return tf.constant(np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype("float32"))


def test_a_function_that_treats_rows_separately_is_the_same() -> None:
    # Each of these ops rounds equally whether a kernel takes one element or many at once; `tanh` does not on every processor.
    comparison = determinism.check_batch_invariance(
        lambda batch: tf.nn.relu(batch) * 3.0 - batch, rows(), sizes=(1, 8, 24)
    )

    assert comparison.verdict is Verdict.SAME, comparison
    assert comparison.batch is not None and comparison.batch.rows_matched == ROWS
    assert comparison.batch.not_told is not None and "tensorflow" in comparison.batch.not_told


def test_a_function_that_combines_rows_is_different() -> None:
    comparison = determinism.check_batch_invariance(
        lambda batch: batch - tf.reduce_mean(batch, 0), rows(), sizes=(2, 8)
    )

    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.first_divergence is not None and comparison.first_divergence.kind is None
    assert not comparison.fixes


def test_batch_norm_combines_rows_only_in_training_mode() -> None:
    layer = keras.layers.BatchNormalization()
    layer.build((None, WIDTH))
    verdicts = [
        determinism.check_batch_invariance(
            lambda batch, mode=mode: layer(batch, training=mode), rows(), sizes=(2, 24)
        ).verdict
        for mode in (False, True)
    ]

    assert verdicts == [Verdict.SAME, Verdict.DIFFERENT]


def test_dropout_draws_different_numbers_for_different_batch_sizes() -> None:
    layer = keras.layers.Dropout(0.5)
    comparison = determinism.check_batch_invariance(lambda batch: layer(batch, training=True), rows(), sizes=(2, 24))

    assert comparison.verdict is Verdict.DIFFERENT


def test_low_precision_is_compared_too() -> None:
    comparison = determinism.check_batch_invariance(
        lambda batch: tf.cast(batch, tf.bfloat16) * 2, rows(), sizes=(1, 24)
    )

    assert comparison.verdict is Verdict.SAME and comparison.batch is not None
    assert comparison.batch.rows_matched == ROWS
