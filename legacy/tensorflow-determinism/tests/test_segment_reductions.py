"""Segment sums and what is built on them."""

import logging
import warnings

import numpy as np
import pytest
import tensorflow as tf
from running import MODES, in_graph, op_types, same_bits, stock
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_math_ops
from tfdeterminism.ops.segment_sum import WARNING_VARIABLE

RANDOM = np.random.RandomState(0)
ROWS = RANDOM.randn(100, 3).astype(np.float32)
UNSORTED = RANDOM.randint(-2, 7, 100).astype(np.int32)


def on_cpu_only(function, *arrays):
    sums = [(name, device) for name, device in op_types(function, *arrays) if "Segment" in name]
    return bool(sums) and all(device == "/device:CPU:0" for _, device in sums)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.int64, np.complex64, np.uint8])
@pytest.mark.parametrize("ids", [np.int32, np.int64])
def test_dtypes_are_summed_as_stock_sums_them(dtype, ids):
    rows = (ROWS * 10).astype(dtype)
    expected = stock(gen_math_ops.unsorted_segment_sum)(rows, UNSORTED.astype(ids), 9).numpy()
    assert same_bits(tf.math.unsorted_segment_sum(rows, UNSORTED.astype(ids), 9).numpy(), expected)
    assert not expected[7:].any()  # segments without rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["unsorted_segment_sum", "unsorted_segment_mean", "unsorted_segment_sqrt_n"])
def test_what_is_built_on_unsorted_segment_sum_is_summed_on_the_cpu(name, mode):
    def function(rows, ids):
        return getattr(tf.math, name)(rows, ids, 8)

    if mode == "graph, unknown shapes" and name != "unsorted_segment_sum":
        pytest.skip("stock means need a known number of dimensions before 2.x")
    kept = UNSORTED >= 0
    counts = np.bincount(UNSORTED[kept], minlength=8)[:, None]
    sums = np.zeros((8, 3))
    np.add.at(sums, UNSORTED[kept], ROWS[kept].astype(np.float64))
    divisors = {"unsorted_segment_sum": 1, "unsorted_segment_mean": counts, "unsorted_segment_sqrt_n": np.sqrt(counts)}
    expected = sums / np.maximum(divisors[name], 1)
    np.testing.assert_allclose(MODES[mode](function, ROWS[kept], UNSORTED[kept]), expected, rtol=1e-5, atol=1e-5)
    assert on_cpu_only(function, ROWS[kept], UNSORTED[kept])


def test_embedding_gradients_become_dense_on_the_cpu():
    def dense(rows, ids):
        return ops.convert_to_tensor(tf.IndexedSlices(rows, ids, tf.constant([9, 3])))

    ids = np.abs(UNSORTED)
    assert on_cpu_only(dense, ROWS, ids)
    assert same_bits(in_graph(dense, ROWS, ids), tf.math.unsorted_segment_sum(ROWS, ids, 9).numpy())


def test_lists_are_taken():
    assert same_bits(tf.math.segment_sum([1.0, 2.0, 4.0], [0, 0, 1]).numpy(), np.float32([3, 4]))
    assert same_bits(tf.math.unsorted_segment_sum([1, 2, 4], [1, 1, 0], 2).numpy(), np.int32([4, 3]))


def test_what_is_not_finite_stays_in_its_segment():
    sums = tf.math.unsorted_segment_sum([1.0, np.nan, np.inf, -np.inf, np.inf], [0, 1, 2, 3, 3], 4).numpy()
    np.testing.assert_equal(sums, [1, np.nan, np.inf, np.nan])


def test_segments_that_are_skipped_are_zero():
    assert same_bits(tf.math.segment_sum([[1.0], [2.0]], [1, 3]).numpy(), np.float32([[0], [1], [0], [2]]))


def test_the_shape_is_known_as_with_stock():
    with tf.Graph().as_default():
        known = tf.math.unsorted_segment_sum(tf.zeros([4, 2]), tf.constant([0, 1, 0, 1]), 3)
        unknown = tf.math.unsorted_segment_sum(tf.compat.v1.placeholder(tf.float32), tf.constant([0, 1]), 3)
    assert known.shape.as_list() == [3, 2]
    assert unknown.shape.ndims is None or unknown.shape.ndims >= 1


@pytest.mark.parametrize(
    "bad",
    [
        lambda: tf.math.segment_sum([1.0, 2.0], [1, 0]),
        lambda: tf.math.segment_sum([1.0, 2.0], [0, 1, 2]),
        lambda: tf.math.segment_sum([1.0, 2.0], [-1, 0]),
        lambda: tf.math.unsorted_segment_sum([1.0, 2.0], [0, 5], 3),
        lambda: tf.math.unsorted_segment_sum([1.0, 2.0], [0, 1, 2], 3),
        lambda: tf.math.unsorted_segment_sum([1.0, 2.0], [0, 1], -1),
    ],
)
def test_what_stock_refuses_is_refused(bad):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        bad()


@pytest.mark.parametrize("mode", MODES)
def test_gradient_and_second_gradient(mode):
    ids = np.sort(np.abs(UNSORTED))

    def gradients(rows):
        with tf.GradientTape() as outer:
            outer.watch(rows)
            with tf.GradientTape() as inner:
                inner.watch(rows)
                output = tf.math.segment_sum(rows, ids) ** 2
            first = inner.gradient(output, rows)
        return [first, outer.gradient(first, rows)]

    sums = np.zeros((ids.max() + 1, 3))
    np.add.at(sums, ids, ROWS.astype(np.float64))
    first, second = MODES[mode](gradients, ROWS)
    np.testing.assert_allclose(first, 2 * sums[ids], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second, np.broadcast_to(2.0 * np.bincount(ids)[ids][:, None], ROWS.shape), rtol=1e-6)


SUMS = {
    "segment_sum": lambda data: tf.math.segment_sum(data, [0, 0, 1]),
    "unsorted_segment_sum": lambda data: tf.math.unsorted_segment_sum(data, [1, 0, 1], 2),
}
# Of which dtypes NVIDIA's tests of its own patches expect a warning.
WARNED_OF = {"segment_sum": ["float64"], "unsorted_segment_sum": ["float64", "complex128"]}


def warnings_of(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(one.message) for one in caught if issubclass(one.category, UserWarning)]


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128", "int32"])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_dtypes_that_nvidias_patches_cannot_do_are_told_of_where_it_is_asked_for(name, dtype, as_tensor, monkeypatch):
    array = np.array([1, 2, 4]).astype(dtype)
    data = tf.constant(array) if as_tensor else array
    assert warnings_of(lambda: SUMS[name](data)) == []
    monkeypatch.setenv(WARNING_VARIABLE, "1")
    told = warnings_of(lambda: SUMS[name](data))
    assert len(told) == (dtype in WARNED_OF[name])
    assert all("GPU-determinism" in text and dtype in text and name in text for text in told)


def test_raw_ops_tell_as_well(monkeypatch):
    monkeypatch.setenv(WARNING_VARIABLE, "1")
    data = tf.constant([1.0, 2.0], tf.float64)
    assert len(warnings_of(lambda: tf.raw_ops.SegmentSum(data=data, segment_ids=[0, 0]))) == 1


def test_the_logger_tells_at_debug_level(caplog):
    with caplog.at_level(logging.DEBUG, logger="tfdeterminism"):
        SUMS["segment_sum"](tf.constant([1.0, 2.0, 4.0], tf.float64))
        SUMS["segment_sum"](tf.constant([1.0, 2.0, 4.0], tf.float32))
    assert [record.getMessage() for record in caplog.records if "GPU-determinism" in record.getMessage()] == [
        "segment_sum of float64 is summed on the CPU; NVIDIA's patch would warn of GPU-determinism here."
    ]
