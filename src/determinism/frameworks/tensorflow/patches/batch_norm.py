"""The gradient of `fused_batch_norm` with `is_training=False`, as in fine-tuning, which the GPU refuses under op determinism.

Its kernel sums the gradients of scale and offset with atomic operations. Here these are `reduce_sum` over all dimensions but
that of the channels, which writes partial sums to memory of its own and adds them in one order. While training, and without a
GPU, the stock kernel runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from determinism.frameworks.tensorflow.patches import placement

_PARAMETERS = ["reserve_space_3", "epsilon", "data_format", "is_training", "name"]


def fused_batch_norm_grad(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A `fused_batch_norm_grad` (of any version of the op) without atomic operations."""
    names = _PARAMETERS if stock.__name__.endswith("_v3") else _PARAMETERS[1:]

    @functools.wraps(stock)
    def deterministic_grad(
        y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any, reserve_space_2: Any, *args: Any, **kwargs: Any
    ) -> Any:
        options = dict(zip(names, args, strict=False)) | kwargs
        if options.get("is_training", True) or not placement.gpu_is_there():
            return stock(y_backprop, x, scale, reserve_space_1, reserve_space_2, *args, **kwargs)
        return _of_inference(y_backprop, x, scale, reserve_space_1, reserve_space_2, options)

    return deterministic_grad


def _of_inference(gradient: Any, x: Any, scale: Any, mean: Any, variance: Any, options: dict[str, Any]) -> Any:
    with tf.name_scope(options.get("name") or "FusedBatchNormGrad"):
        x, scale, mean, variance = (tf.convert_to_tensor(one) for one in (x, scale, mean, variance))
        gradient = tf.cast(gradient, scale.dtype)
        shape, axes = _channels(tf.rank(x), options.get("data_format", "NHWC"))
        factor = tf.math.rsqrt(variance + options.get("epsilon", 0.0001))
        normal = (tf.cast(x, scale.dtype) - tf.reshape(mean, shape)) * tf.reshape(factor, shape)
        of_x = tf.cast(gradient * tf.reshape(scale * factor, shape), x.dtype)
        nothing = tf.zeros([], scale.dtype)
        of_scale, of_offset = (tf.reduce_sum(one, axis=axes) for one in (gradient * normal, gradient))
        return of_x, of_scale, of_offset, nothing, nothing


def _channels(rank: Any, data_format: str | bytes) -> tuple[Any, Any]:
    """The shape that lets one number per channel meet a tensor, and the axes to sum over."""
    if data_format in ("NCHW", b"NCHW", "NCDHW", b"NCDHW"):
        beside = tf.ones([tf.maximum(rank - 2, 0)], tf.int32)
        return tf.concat([[1, -1], beside], axis=0), tf.concat([[0], tf.range(2, rank)], axis=0)
    return [-1], tf.range(0, rank - 1)
