"""The gradient of bias_add, where there is a GPU (as these tests pretend) and where there is none."""

import numpy as np
import pytest
import tensorflow as tf
from running import MODES, in_graph, op_types, same_bits, stock
from tensorflow.python.ops import gen_nn_ops, nn_ops
from tfdeterminism.ops import bias_add
from tfdeterminism.placement import gpu_is_there

SHAPES = [
    ((5, 3), "NHWC"),
    ((4, 7, 6, 3), "NHWC"),
    ((4, 3, 7, 6), "NCHW"),
    ((2, 3, 4, 5, 6), "NCHW"),
    ((4, 3, 5), "NCHW"),
]


@pytest.fixture
def with_gpu(monkeypatch):
    monkeypatch.setattr(bias_add, "gpu_is_there", lambda: True)


def gradient_of_bias(data_format):
    def gradients(value, bias, upstream):
        with tf.GradientTape() as tape:
            tape.watch(bias)
            output = nn_ops.bias_add(value, bias, data_format=data_format)
        return tape.gradient(output, bias, output_gradients=upstream)

    return gradients


def arrays(shape, data_format, dtype=np.float32):
    random = np.random.RandomState(0)
    channels = shape[1 if data_format == "NCHW" else -1]
    return random.randn(*shape).astype(dtype), random.randn(channels).astype(dtype), random.randn(*shape).astype(dtype)


def expected(upstream, data_format):
    axes = [0, *list(range(2, upstream.ndim))] if data_format == "NCHW" else list(range(upstream.ndim - 1))
    return upstream.astype(np.float64).sum(axis=tuple(axes))


def test_this_machine_has_no_gpu_or_the_tests_are_run_on_it():
    assert gpu_is_there() in (True, False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "data_format"), SHAPES)
def test_the_sum_is_right_where_there_is_a_gpu(with_gpu, shape, data_format, mode):
    value, bias, upstream = arrays(shape, data_format)
    gradient = MODES[mode](gradient_of_bias(data_format), value, bias, upstream)
    np.testing.assert_allclose(gradient, expected(upstream, data_format), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes_are_kept_and_half_is_summed_in_float32(with_gpu, dtype):
    value, bias, upstream = arrays((64, 50, 3), "NHWC", dtype)
    gradient = MODES["eager"](gradient_of_bias("NHWC"), value, bias, upstream)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient, expected(upstream, "NHWC"), rtol=2e-3 if dtype == np.float16 else 1e-4)


@pytest.mark.parametrize(("shape", "data_format"), SHAPES)
def test_no_kernel_that_adds_atomically_is_left_where_there_is_a_gpu(with_gpu, shape, data_format):
    types = [name for name, _ in op_types(gradient_of_bias(data_format), *arrays(shape, data_format))]
    assert "BiasAddGrad" not in types
    assert "Sum" in types
    assert "BiasAdd" in types  # the forward op with all its checks


@pytest.mark.parametrize(("shape", "data_format"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_without_a_gpu_not_a_bit_changes(monkeypatch, shape, data_format, dtype):
    monkeypatch.setattr(bias_add, "gpu_is_there", lambda: False)
    upstream = arrays(shape, data_format)[2].astype(dtype)
    stock_gradient, gradient = in_graph(
        lambda tensor: [
            stock(gen_nn_ops.bias_add_grad)(tensor, data_format=data_format),
            gen_nn_ops.bias_add_grad(tensor, data_format=data_format),
        ],
        upstream,
    )
    assert same_bits(stock_gradient, gradient)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_channel(with_gpu, value):
    upstream = np.ones((4, 3), np.float32)
    upstream[1, 2] = value
    gradient = MODES["eager"](gradient_of_bias("NHWC"), upstream, np.ones(3, np.float32), upstream)
    assert same_bits(gradient[:2], np.float32([4, 4]))
    np.testing.assert_equal(gradient[2], value)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_empty_tensors_sum_to_zero(with_gpu, shape):
    gradient = MODES["eager"](gradient_of_bias("NHWC"), *arrays(shape, "NHWC"))
    assert same_bits(gradient, np.zeros(shape[-1], np.float32))


def test_lists_are_taken(with_gpu):
    gradient = gen_nn_ops.bias_add_grad([[1.0, 2.0], [3.0, 4.0]])
    assert same_bits(gradient.numpy(), np.float32([4, 6]))


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_the_second_gradient_is_that_of_a_sum(with_gpu, data_format):
    value, bias, upstream = arrays((2, 3, 4, 5), data_format)

    def second(value, bias, upstream):
        with tf.GradientTape() as outer:
            outer.watch(upstream)
            with tf.GradientTape() as inner:
                inner.watch(bias)
                output = nn_ops.bias_add(value, bias, data_format=data_format)
            gradient = inner.gradient(output, bias, output_gradients=upstream)
            weighted = gradient * gradient
        return outer.gradient(weighted, upstream)

    axis = 1 if data_format == "NCHW" else 3
    shape = [1, 1, 1, 1]
    shape[axis] = -1
    sums = 2 * expected(upstream, data_format).reshape(shape)
    for mode in MODES:
        np.testing.assert_allclose(
            MODES[mode](second, value, bias, upstream), np.broadcast_to(sums, upstream.shape), rtol=1e-4, atol=1e-5
        )


def test_a_scalar_or_an_unknown_format_is_refused(with_gpu):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        gen_nn_ops.bias_add_grad(tf.constant(1.0))
    with pytest.raises(ValueError, match="NHWC"):
        gen_nn_ops.bias_add_grad(tf.ones([2, 2]), data_format="CHWN")


@pytest.mark.parametrize(("value", "bias"), [((4, 3), (1,)), ((4, 3), (4,)), ((3,), (3,)), ((4, 3), (3, 1))], ids=str)
def test_bias_add_refuses_what_it_refused(value, bias):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tf.nn.bias_add(tf.ones(value), tf.ones(bias))
