"""`tf.math.bincount` with weights.

The kernels for the CPU give each thread sums of its own and add those up: the result depends on which thread took which
elements, op determinism or not; those for the GPU refuse to run under it. Here the weights are summed per bin in the order
in which they lie, by the kernel of `UnsortedSegmentSum` for the CPU, which takes one after the other. Without weights, or
with integers, any order gives the same: then the stock kernel for the CPU runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from determinism.frameworks.tensorflow.patches.placement import cpu

Count = Callable[[], Any]


def bincount(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `bincount` of floating-point weights in one order."""

    @functools.wraps(stock)
    def deterministic_bincount(arr: Any, size: Any, weights: Any, name: str | None = None) -> Any:
        with cpu(), tf.name_scope(name or "Bincount"):
            values = tf.convert_to_tensor(arr, dtype=tf.int32)
            bins = tf.convert_to_tensor(size, dtype=tf.int32)
            weights = tf.convert_to_tensor(weights)
            return _weighted_or_stock(values, bins, weights, lambda: stock(values, bins, weights))

    return deterministic_bincount


def dense_bincount(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `dense_bincount` of floating-point weights in one order; the rows of matrices are counted one by one, as they are."""

    @functools.wraps(stock)
    def deterministic_dense_bincount(
        input: Any, size: Any, weights: Any, binary_output: bool = False, name: str | None = None
    ) -> Any:
        with cpu(), tf.name_scope(name or "DenseBincount"):
            values = tf.convert_to_tensor(input)
            bins = tf.convert_to_tensor(size, dtype=values.dtype)
            weights = tf.convert_to_tensor(weights)

            def as_stock() -> Any:
                return stock(values, bins, weights, binary_output=binary_output)

            if binary_output or values.shape.rank == 2:
                return as_stock()
            return _weighted_or_stock(values, bins, weights, as_stock, only_vectors=True)

    return deterministic_dense_bincount


def _weighted_or_stock(values: Any, size: Any, weights: Any, as_stock: Count, only_vectors: bool = False) -> Any:
    if not weights.dtype.is_floating or weights.shape.num_elements() == 0:
        return as_stock()
    vector = not only_vectors or values.shape.rank == 1
    if vector and weights.shape.num_elements() is not None:
        return _weighted(values, size, weights)
    # Whether there are weights, or how many dimensions the values have, is known only when it runs.
    weighted = tf.size(weights) > 0
    if not vector:
        weighted = tf.logical_and(weighted, tf.equal(tf.rank(values), 1))
    return tf.cond(weighted, lambda: _weighted(values, size, weights), as_stock)


def _weighted(values: Any, size: Any, weights: Any) -> Any:
    from tensorflow.python.ops import gen_math_ops

    checks = [
        tf.debugging.assert_equal(
            tf.shape(values), tf.shape(weights), message="values and weights must have one shape"
        ),
        tf.debugging.Assert(size >= 0, ["size must be non-negative", size]),
        tf.debugging.Assert(tf.reduce_all(values >= 0), ["values must be non-negative", values]),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        # What lies beyond the last bin is not counted; segments of a negative number are not summed either.
        bins = tf.where(values < size, values, -tf.ones_like(values))
        return gen_math_ops.unsorted_segment_sum(weights, bins, size)
