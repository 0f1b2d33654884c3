"""bincount with weights."""

import numpy as np
import pytest
import tensorflow as tf
from running import MODES, in_graph, op_types, same_bits, stock
from tensorflow.python.ops import gen_math_ops

RANDOM = np.random.RandomState(0)
VALUES = RANDOM.randint(0, 9, 50).astype(np.int32)
WEIGHTS = RANDOM.randn(50).astype(np.float32)
NAMES = [name for name in ("bincount", "dense_bincount") if hasattr(gen_math_ops, name)]
TYPES = {"bincount": "Bincount", "dense_bincount": "DenseBincount"}


def one_after_the_other(values, weights, size):
    sums = np.zeros(size, weights.dtype)
    for value, weight in zip(np.ravel(values), np.ravel(weights)):
        if value < size:
            sums[value] += weight
    return sums


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_weights_are_summed_in_their_order(name, dtype):
    weights = (WEIGHTS * 9).astype(dtype)
    function = getattr(gen_math_ops, name)
    found = function(VALUES, 7, weights).numpy()
    assert same_bits(found, one_after_the_other(VALUES, weights, 7))
    # As few elements as these are counted by one thread.
    assert same_bits(found, stock(function)(VALUES, 7, weights).numpy())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weights", [WEIGHTS, np.float32([])], ids=["weights", "none"])
def test_with_and_without_weights_however_much_is_known(name, mode, weights):
    found = MODES[mode](lambda values, weights: getattr(gen_math_ops, name)(values, 9, weights), VALUES, weights)
    ones = np.ones(50, np.float32)
    assert same_bits(found, one_after_the_other(VALUES, weights if weights.size else ones, 9))


@pytest.mark.parametrize("name", NAMES)
def test_the_stock_kernel_does_not_add_weights(name):
    types = op_types(lambda values, weights: getattr(gen_math_ops, name)(values, 9, weights), VALUES, WEIGHTS)
    assert TYPES[name] not in [type_ for type_, _ in types]
    assert ("UnsortedSegmentSum", "/device:CPU:0") in types


@pytest.mark.parametrize("name", NAMES)
def test_counting_alone_is_left_to_the_stock_kernel_of_the_cpu(name):
    types = op_types(lambda values: getattr(gen_math_ops, name)(values, 9, np.float32([])), VALUES)
    assert (TYPES[name], "/device:CPU:0") in types


def test_the_public_function_is_covered():
    found = tf.math.bincount(VALUES, weights=WEIGHTS)
    assert same_bits(found.numpy(), one_after_the_other(VALUES, WEIGHTS, VALUES.max() + 1))
    graph_result = in_graph(lambda values, weights: tf.math.bincount(values, weights=weights), VALUES, WEIGHTS)
    assert same_bits(graph_result, found.numpy())


@pytest.mark.skipif("dense_bincount" not in NAMES, reason="DenseBincount came later")
@pytest.mark.parametrize("mode", MODES)
def test_matrices_are_counted_row_by_row_and_presence_is_kept(mode):
    values, weights = VALUES.reshape(5, 10), WEIGHTS.reshape(5, 10)
    found = MODES[mode](lambda values, weights: gen_math_ops.dense_bincount(values, 9, weights), values, weights)
    assert same_bits(found, np.stack([one_after_the_other(*row, 9) for row in zip(values, weights)]))
    binary = MODES[mode](
        lambda values: gen_math_ops.dense_bincount(values, 12, np.float32([]), binary_output=True), VALUES
    )
    assert same_bits(binary, (np.bincount(VALUES, minlength=12) > 0).astype(np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_stays_in_its_bin(name):
    found = getattr(gen_math_ops, name)([0, 1, 1, 2], 4, [np.nan, np.inf, -np.inf, np.inf]).numpy()
    np.testing.assert_equal(found, [np.nan, np.nan, np.inf, 0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("values", "size", "weights"),
    [([-1, 0], 3, [1.0, 2.0]), ([0, 1], -1, [1.0, 2.0]), ([0, 1], 3, [1.0, 2.0, 3.0])],
    ids=["negative value", "negative size", "too many weights"],
)
def test_what_does_not_fit_is_refused(name, values, size, weights):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        getattr(gen_math_ops, name)(values, size, weights)
