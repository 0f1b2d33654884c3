"""parallel_dynamic_stitch: the last of several rows with one index wins."""

import numpy as np
import pytest
import tensorflow as tf
from running import MODES, in_graph, op_types, same_bits, stock
from tensorflow.python.ops import gen_data_flow_ops

RANDOM = np.random.RandomState(0)


def stitch(*pairs):
    half = len(pairs) // 2
    return gen_data_flow_ops.parallel_dynamic_stitch(list(pairs[:half]), list(pairs[half:]))


@pytest.mark.parametrize("mode", MODES)
def test_without_repeated_indices_nothing_changes(mode):
    order = RANDOM.permutation(8).astype(np.int32)
    rows = RANDOM.randn(8, 3).astype(np.float32)
    given = order[:3], order[3:], rows[:3], rows[3:]
    original = stock(gen_data_flow_ops.parallel_dynamic_stitch)
    expected = in_graph(lambda *pairs: original(list(pairs[:2]), list(pairs[2:])), *given)
    assert same_bits(MODES[mode](stitch, *given), expected)


@pytest.mark.parametrize("mode", MODES)
def test_the_last_row_of_an_index_wins(mode):
    given = np.int32([0, 1, 0]), np.int32([1, 2]), np.float32([[1], [2], [3]]), np.float32([[4], [5]])
    assert same_bits(MODES[mode](stitch, *given), np.float32([[3], [4], [5]]))


def test_the_parallel_kernel_does_not_run():
    types = [name for name, _ in op_types(stitch, np.int32([0, 0]), np.float32([1, 2]))]
    assert "DynamicStitch" in types
    assert "ParallelDynamicStitch" not in types


def test_the_gradient_is_there():
    rows = tf.constant([[1.0], [2.0]])
    with tf.GradientTape() as tape:
        tape.watch(rows)
        stitched = stitch(tf.constant([1, 0]), rows) * [[10.0], [100.0]]
    assert same_bits(tape.gradient(stitched, rows).numpy(), np.float32([[100], [10]]))


def test_what_stock_refuses_is_refused():
    for bad in ([-1, 0], [0]):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            stitch(tf.constant(bad), tf.constant([[1.0], [2.0]]))
