"""Layers of networks: convolutions, pools, normalisation, products, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from determinism.frameworks.op_audit.arrays import FLOATS
from determinism.frameworks.tensorflow.op_audit.case import Call, Case, Inputs
from determinism.frameworks.tensorflow.op_audit.image_cases import IMAGES, image

_SIZES = {1: (2048,), 2: (64, 64), 3: (20, 20, 20)}
"""Lengths of images, by the number of dimensions."""
_LAYOUTS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
_CHANNELS = 8


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _convolutions()
    yield from _pools()
    yield from _products()
    yield from _losses()
    yield Case("tf.compat.v1.nn.fused_batch_norm", "training", _batch_norm)
    yield Case("tf.quantization.fake_quant_with_min_max_vars", "all elements", _fake_quant)


def _images(inputs: Inputs, dims: int) -> tf.Tensor:
    return inputs.leaf(4, *_SIZES[dims], _CHANNELS)


def _convolutions() -> Iterator[Case]:
    for dims in (1, 2, 3):
        dtypes = ("float32", "bfloat16") if dims == 2 else ("float32",)
        yield Case(f"tf.nn.conv{dims}d", "kernel 3, stride 2", _convolution(dims), dtypes)
        yield Case(f"tf.nn.conv{dims}d", "transposed, kernel 3, stride 2", _transposed(dims))
    yield Case("tf.nn.depthwise_conv2d", "kernel 3, 2 filters per channel", _depthwise)
    yield Case("tf.nn.bias_add", "images", _bias, FLOATS)
    yield Case("tf.nn.dilation2d", "kernel 3", _dilation)


def _convolution(dims: int) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        batch, filters = _images(inputs, dims), inputs.leaf(*(3,) * dims, _CHANNELS, _CHANNELS)
        return lambda: tf.nn.convolution(batch, filters, strides=2, padding="SAME", data_format=_LAYOUTS[dims])

    return make


def _transposed(dims: int) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        batch, filters = _images(inputs, dims), inputs.leaf(*(3,) * dims, _CHANNELS, _CHANNELS)
        shape = [4, *(2 * size for size in _SIZES[dims]), _CHANNELS]
        return lambda: tf.nn.conv_transpose(
            batch, filters, shape, strides=2, padding="SAME", data_format=_LAYOUTS[dims]
        )

    return make


def _depthwise(inputs: Inputs) -> Call:
    batch, filters = _images(inputs, 2), inputs.leaf(3, 3, _CHANNELS, 2)
    return lambda: tf.nn.depthwise_conv2d(batch, filters, [1, 1, 1, 1], "SAME")


def _bias(inputs: Inputs) -> Call:
    batch, bias = _images(inputs, 2), inputs.leaf(_CHANNELS)
    return lambda: tf.nn.bias_add(batch, bias)


def _dilation(inputs: Inputs) -> Call:
    batch, filters = _images(inputs, 2), inputs.leaf(3, 3, _CHANNELS)
    return lambda: tf.nn.dilation2d(batch, filters, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1])


def _pools() -> Iterator[Case]:
    for dims in (1, 2, 3):
        yield Case(f"tf.nn.max_pool{dims}d", "overlapping windows", _pool(dims))
    yield Case(
        "tf.nn.max_pool_with_argmax",
        "overlapping windows",
        image(lambda x: tf.nn.max_pool_with_argmax(x, 3, 1, "SAME")),
    )
    for seed in (1, 0):
        name = "tf.nn.fractional_max_pool"
        yield Case(name, f"seed={seed}, overlapping windows", image(_fractional(seed)))


def _pool(dims: int) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        batch = _images(inputs, dims)
        return lambda: getattr(tf.nn, f"max_pool{dims}d")(batch, 3, 1, "SAME")

    return make


def _fractional(seed: int) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.nn.fractional_max_pool(x, 1.4, overlapping=True, seed=seed)


def _products() -> Iterator[Case]:
    yield Case("tf.linalg.matmul", "two matrices", _matmul, FLOATS)
    yield Case("tf.sparse.sparse_dense_matmul", "equal rows", _sparse_dense)
    yield Case("tf.sparse.sparse_dense_matmul", "equal rows, transposed", lambda i: _sparse_dense(i, transposed=True))
    yield Case("tf.linalg.svd", "64 x 48", _svd)


def _matmul(inputs: Inputs) -> Call:
    left, right = inputs.leaf(192, 512), inputs.leaf(512, 192)
    return lambda: tf.linalg.matmul(left, right)


def _sparse_dense(inputs: Inputs, *, transposed: bool = False) -> Call:
    places = np.unique(inputs.arrays.whole(128, 8192, 2), axis=0).astype(np.int64)
    values, dense = inputs.leaf(len(places)), inputs.leaf(128, 64)
    return lambda: tf.sparse.sparse_dense_matmul(
        tf.SparseTensor(places, values, (128, 128)), dense, adjoint_a=transposed
    )


def _svd(inputs: Inputs) -> Call:
    matrix = inputs.leaf(64, 48)
    return lambda: tf.linalg.svd(matrix)


def _batch_norm(inputs: Inputs) -> Call:
    batch = inputs.leaf(*IMAGES)
    scale, offset = inputs.leaf(IMAGES[-1]), inputs.leaf(IMAGES[-1])
    return lambda: tf.compat.v1.nn.fused_batch_norm(batch, scale, offset)


def _fake_quant(inputs: Inputs) -> Call:
    batch = inputs.leaf(*IMAGES)
    low, high = inputs.leaf_of(np.array(-2.0)), inputs.leaf_of(np.array(2.0))
    return lambda: tf.quantization.fake_quant_with_min_max_vars(batch, low, high)


def _losses() -> Iterator[Case]:
    yield Case("tf.nn.softmax_cross_entropy_with_logits", "distributions", _cross_entropy)
    yield Case("tf.nn.sparse_softmax_cross_entropy_with_logits", "labels", _sparse_cross_entropy)
    yield Case("tf.nn.ctc_loss", "repeated labels", _ctc)


def _cross_entropy(inputs: Inputs) -> Call:
    scores, labels = inputs.leaf(8192, 64), tf.nn.softmax(inputs.normal(8192, 64))
    return lambda: tf.nn.softmax_cross_entropy_with_logits(labels, scores)


def _sparse_cross_entropy(inputs: Inputs) -> Call:
    scores, labels = inputs.leaf(8192, 64), inputs.whole(64, 8192)
    return lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)


def _ctc(inputs: Inputs) -> Call:
    scores, labels = inputs.leaf(32, 16, 16), inputs.whole(3, 16, 12) + 1
    lengths, frames = tf.fill([16], 12), tf.fill([16], 32)
    return lambda: tf.nn.ctc_loss(labels, scores, lengths, frames, blank_index=0)
