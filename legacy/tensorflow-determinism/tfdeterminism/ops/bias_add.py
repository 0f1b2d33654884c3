"""The gradient of `tf.nn.bias_add` with respect to the bias.

The GPU kernel of BiasAddGrad adds with atomic operations. Here the same sum is a `reduce_sum` over all dimensions but
that of the channels: its GPU kernels write partial sums to memory of their own and add those in a fixed order. float16
is summed in float32, as BiasAddGrad does. Without a GPU BiasAddGrad itself runs, which is deterministic on the CPU, so
that no bit changes there. The op BiasAdd, with all its checks, stays as it is.
"""

import functools

from tfdeterminism.placement import gpu_is_there


def bias_add_grad(stock):
    """A `bias_add_grad` without atomic operations."""

    @functools.wraps(stock)
    def deterministic_bias_add_grad(out_backprop, data_format="NHWC", name=None):
        if not gpu_is_there():
            return stock(out_backprop, data_format=data_format, name=name)
        return _sum_over_all_but_channels(out_backprop, data_format, name)

    return deterministic_bias_add_grad


def _sum_over_all_but_channels(out_backprop, data_format, name):
    from tensorflow.python.framework import dtypes, ops
    from tensorflow.python.ops import array_ops, math_ops

    channels_first = data_format in ("NCHW", b"NCHW")
    if not channels_first and data_format not in ("NHWC", b"NHWC", None):
        raise ValueError("data_format of bias_add is {!r}; it has to be 'NHWC' or 'NCHW'.".format(data_format))
    with ops.name_scope(name, "BiasAddGrad", [out_backprop]) as scope:
        gradient = ops.convert_to_tensor(out_backprop, name="out_backprop")
        gradient.shape.with_rank_at_least(3 if channels_first else 2)
        dtype = gradient.dtype
        if dtype in (dtypes.float16, dtypes.bfloat16):
            gradient = math_ops.cast(gradient, dtypes.float32)
        shape = array_ops.shape(gradient)
        if channels_first:
            # Its spatial dimensions become one: the kernels know sums over the first and last of three.
            spatial = math_ops.reduce_prod(shape[2:], keepdims=True)
            gradient = array_ops.reshape(gradient, array_ops.concat([shape[:2], spatial], axis=0))
            total = math_ops.reduce_sum(gradient, axis=[0, 2])
        else:
            rows = math_ops.reduce_prod(shape[:-1], keepdims=True)
            gradient = array_ops.reshape(gradient, array_ops.concat([rows, shape[-1:]], axis=0))
            total = math_ops.reduce_sum(gradient, axis=0)
        return math_ops.cast(total, dtype, name=scope)
