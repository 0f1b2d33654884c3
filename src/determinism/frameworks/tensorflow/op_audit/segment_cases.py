"""Ops that reduce: segments of rows, columns, and everything to one number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tensorflow as tf

from determinism.frameworks.op_audit.arrays import FEW, FLOATS, MANY
from determinism.frameworks.tensorflow.op_audit.case import Call, Case, Inputs
from determinism.frameworks.tensorflow.op_audit.writing_cases import ROWS, WIDTH


def cases() -> Iterator[Case]:
    """All of them."""
    for name in ("sum", "mean", "prod"):
        run = getattr(tf.math, f"segment_{name}")
        yield Case(f"tf.math.segment_{name}", "few segments", _sorted(run), FLOATS if name == "sum" else ("float32",))
    for name in ("sum", "mean", "prod", "sqrt_n"):
        run = getattr(tf.math, f"unsorted_segment_{name}")
        dtypes = FLOATS if name == "sum" else ("float32",)
        yield Case(f"tf.math.unsorted_segment_{name}", "few segments", _unsorted(run), dtypes)
    for name in ("sum", "mean", "sqrt_n"):
        run = getattr(tf.sparse, f"segment_{name}")
        yield Case("tf.sparse.segment_sum", f"segment_{name}, equal indices", _sparse(run))
    yield Case("tf.math.reduce_sum", "all elements", _all(tf.math.reduce_sum), FLOATS)
    yield Case("tf.math.reduce_sum", "reduce_mean, all elements", _all(tf.math.reduce_mean))
    yield Case("tf.math.reduce_sum", "columns", _all(lambda x: tf.math.reduce_sum(tf.reshape(x, (512, -1)), 0)))


def _sorted(run: Callable[..., tf.Tensor]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        segments, values = tf.sort(inputs.whole(FEW, ROWS)), inputs.leaf_of(inputs.arrays.near_one(ROWS, WIDTH))
        return lambda: run(values, segments)

    return make


def _unsorted(run: Callable[..., tf.Tensor]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        segments, values = inputs.whole(FEW, ROWS), inputs.leaf_of(inputs.arrays.near_one(ROWS, WIDTH))
        return lambda: run(values, segments, FEW)

    return make


def _sparse(run: Callable[..., tf.Tensor]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        rows, index = inputs.leaf(FEW, WIDTH), inputs.whole(FEW, ROWS)
        segments = tf.sort(inputs.whole(FEW, ROWS))
        return lambda: run(rows, index, segments)

    return make


def _all(run: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        values = inputs.leaf(MANY)
        return lambda: run(values)

    return make
