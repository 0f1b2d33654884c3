"""The gradient of fused_batch_norm with is_training=False, where there is a GPU (as these tests pretend)."""

import numpy as np
import pytest
import tensorflow as tf
from running import MODES, op_types, same_bits, stock
from tensorflow.python.ops import gen_nn_ops
from tfdeterminism.ops import batch_norm

RANDOM = np.random.RandomState(0)
VERSIONS = ["", "_v2", "_v3"]


@pytest.fixture
def with_gpu(monkeypatch):
    monkeypatch.setattr(batch_norm, "gpu_is_there", lambda: True)


def arrays(dtype=np.float32):
    x, upstream = [RANDOM.randn(4, 5, 6, 3).astype(dtype) for _ in range(2)]
    return [upstream, x, *[RANDOM.uniform(0.5, 2, 3).astype(np.float32) for _ in range(3)]]


def grad(version, of=lambda function: function, **options):
    function = of(getattr(gen_nn_ops, "fused_batch_norm_grad" + version))
    third = {"reserve_space_3": np.zeros([], np.float32)} if version == "_v3" else {}

    def gradients(*tensors):
        return list(function(*tensors, epsilon=0.01, is_training=False, **third, **options)[:3])

    return gradients


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["eager", "function", "graph", "graph, unknown sizes"])
def test_the_sums_are_right(with_gpu, version, mode):
    given = arrays()
    expected = MODES["eager"](grad(version, stock), *given)
    for found, stocks in zip(MODES[mode](grad(version), *given), expected):
        np.testing.assert_allclose(found, stocks, rtol=1e-4, atol=1e-5)
    assert not [name for name, _ in op_types(grad(version), *given) if "BatchNorm" in name]


@pytest.mark.parametrize("mode", ["eager", "graph, unknown sizes"])
def test_channels_may_come_first(with_gpu, mode):
    upstream, x, *rest = arrays()
    expected = MODES["eager"](grad("_v3"), upstream, x, *rest)
    moved = [np.ascontiguousarray(np.moveaxis(array, 3, 1)) for array in (upstream, x)]
    found = MODES[mode](grad("_v3", data_format="NCHW"), *moved, *rest)
    np.testing.assert_allclose(np.moveaxis(found[0], 1, 3), expected[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-4, atol=1e-5)


def test_half_is_summed_in_float32(with_gpu):
    of_x, of_scale, of_offset = MODES["eager"](grad("_v3"), *arrays(np.float16))
    assert (of_x.dtype, of_scale.dtype, of_offset.dtype) == (np.float16, np.float32, np.float32)


def test_the_layer_in_fine_tuning_is_covered(with_gpu):
    def gradients(x):
        scale, offset = tf.ones([3]), tf.zeros([3])
        with tf.GradientTape() as tape:
            tape.watch([scale, offset])
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(
                x, scale, offset, mean=tf.zeros([3]), variance=tf.ones([3]), is_training=False
            )
            loss = tf.reduce_sum(y * y)
        return tape.gradient(loss, [scale, offset])

    x = RANDOM.randn(4, 5, 6, 3).astype(np.float32)
    assert not [name for name, _ in op_types(gradients, x) if "BatchNormGrad" in name]
    of_scale, of_offset = MODES["eager"](gradients, x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(of_scale, 2 * (wide**2).sum((0, 1, 2)), rtol=2e-3)
    np.testing.assert_allclose(of_offset, 2 * wide.sum((0, 1, 2)), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_gpu_not_a_bit_changes(monkeypatch, version):
    monkeypatch.setattr(batch_norm, "gpu_is_there", lambda: False)
    given = arrays()
    assert same_bits(MODES["graph"](grad(version), *given), MODES["graph"](grad(version, stock), *given))
