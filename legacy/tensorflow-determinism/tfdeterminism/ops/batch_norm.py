"""The gradient of `fused_batch_norm` with `is_training=False`, as in fine-tuning.

The GPU kernel sums the gradients of scale and offset with atomic operations. Here these are sums over all dimensions but
that of the channels, whose kernels have a fixed order (see `bias_add`), of the products that the kernel takes. While
training, and without a GPU, the stock kernel runs.
"""

import functools

from tfdeterminism.placement import gpu_is_there


def fused_batch_norm_grad(stock):
    """A `fused_batch_norm_grad` (of any version of the op) without atomic operations."""

    @functools.wraps(stock)
    def deterministic_grad(y_backprop, x, scale, reserve_space_1, reserve_space_2, *args, **kwargs):
        options = dict(zip(_names_after_second_space(stock), args), **kwargs)
        if options.get("is_training", True) or not gpu_is_there():
            return stock(y_backprop, x, scale, reserve_space_1, reserve_space_2, *args, **kwargs)
        return _of_inference(y_backprop, x, scale, reserve_space_1, reserve_space_2, options)

    return deterministic_grad


def _names_after_second_space(stock):
    """The parameters after `reserve_space_2`; a third space came with the third version of the op."""
    third = ["reserve_space_3"] if stock.__name__.endswith("_v3") else []
    return [*third, "epsilon", "data_format", "is_training", "name"]


def _of_inference(y_backprop, x, scale, mean, variance, options):
    from tensorflow.python.framework import dtypes, ops
    from tensorflow.python.ops import array_ops, math_ops

    with ops.name_scope(options.get("name"), "FusedBatchNormGrad", [y_backprop, x, scale, mean, variance]):
        x, scale = ops.convert_to_tensor(x), ops.convert_to_tensor(scale)
        mean, variance = ops.convert_to_tensor(mean), ops.convert_to_tensor(variance)
        gradient = math_ops.cast(y_backprop, scale.dtype)
        channels_first = options.get("data_format", "NHWC") in ("NCHW", b"NCHW", "NCDHW", b"NCDHW")
        if channels_first:
            beside = array_ops.ones([math_ops.maximum(array_ops.rank(x) - 2, 0)], dtypes.int32)
            shape = array_ops.concat([[1, -1], beside], axis=0)
            axes = array_ops.concat([[0], math_ops.range(2, array_ops.rank(x))], axis=0)
        else:
            shape, axes = [-1], math_ops.range(0, array_ops.rank(x) - 1)
        factor = math_ops.rsqrt(variance + options.get("epsilon", 0.0001))
        normal = (math_ops.cast(x, scale.dtype) - array_ops.reshape(mean, shape)) * array_ops.reshape(factor, shape)
        of_x = math_ops.cast(gradient * array_ops.reshape(scale * factor, shape), x.dtype)
        nothing = array_ops.zeros([], scale.dtype)
        of_scale = math_ops.reduce_sum(gradient * normal, axis=axes)
        return of_x, of_scale, math_ops.reduce_sum(gradient, axis=axes), nothing, nothing
