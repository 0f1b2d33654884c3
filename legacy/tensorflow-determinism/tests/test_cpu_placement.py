"""Ops that run on the CPU: their values are those of the stock op to the last bit, wherever they are built."""

import numpy as np
import pytest
import tensorflow as tf
from running import MODES, VERSION, graph_of, in_graph, op_types, same_bits, stock
from tensorflow.python.framework import ops
from tensorflow.python.ops import (
    gen_array_ops,
    gen_image_ops,
    gen_math_ops,
    gen_nn_ops,
    gen_sparse_ops,
)
from tfdeterminism import catalogue
from tfdeterminism.placement import on_cpu

v1 = tf.compat.v1
RANDOM = np.random.RandomState(0)
CPU = "/device:CPU:0"


def numbers(*shape):
    return RANDOM.randn(*shape).astype(np.float32)


def cases():
    """A call of each function that is merely moved to the CPU: (module, name), arrays, and how they become arguments."""
    ids = np.int32([0, 0, 2, 2, 2, 5])
    nd = np.int32([[1], [1], [0], [3]])
    rows, four, images = numbers(6, 3), numbers(4, 3), numbers(2, 6, 6, 3)
    probabilities = np.full((8, 5), 0.2, np.float32)
    pairs = np.int64([[0, 1], [0, 1], [2, 3], [1, 0]])
    boxes, box_ind = np.float32([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9]]), np.int32([0, 1])
    filters = numbers(2, 2, 3)
    pooled, argmax = [
        part.numpy()
        for part in gen_nn_ops.max_pool_with_argmax(
            tf.constant(images), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"
        )
    ]
    dilation = {"strides": [1, 1, 1, 1], "rates": [1, 1, 1, 1], "padding": "SAME"}
    pooling = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    return {
        "segment_sum": (gen_math_ops, (rows, ids), {}),
        "segment_prod": (gen_math_ops, (rows, ids), {}),
        "unsorted_segment_sum": (gen_math_ops, (rows, np.int32([3, -1, 0, 3, 3, 1]), np.int32(5)), {}),
        "unsorted_segment_prod": (gen_math_ops, (rows, np.int32([3, -1, 0, 3, 3, 1]), np.int32(5)), {}),
        "scatter_nd": (gen_array_ops, (nd, four, np.int32([5, 3])), {}),
        "tensor_scatter_add": (gen_array_ops, (rows, nd, four), {}),
        "tensor_scatter_sub": (gen_array_ops, (rows, nd, four), {}),
        "tensor_scatter_update": (gen_array_ops, (rows, nd, four), {}),
        "softmax_cross_entropy_with_logits": (gen_nn_ops, (numbers(8, 5), probabilities), {}),
        "sparse_softmax_cross_entropy_with_logits": (
            gen_nn_ops,
            (numbers(8, 5), np.int32([0, 1, 2, 3, 4, 0, 1, 2])),
            {},
        ),
        "resize_bilinear_grad": (gen_image_ops, (images, numbers(2, 3, 4, 3)), {}),
        "resize_nearest_neighbor_grad": (gen_image_ops, (images, np.int32([3, 4])), {}),
        "crop_and_resize_grad_boxes": (gen_image_ops, (numbers(2, 4, 4, 3), images, boxes, box_ind), {}),
        "adjust_contrastv2": (gen_image_ops, (images, np.float32(2)), {}),
        "sparse_tensor_dense_mat_mul": (gen_sparse_ops, (pairs, numbers(4), np.int64([3, 4]), numbers(4, 5)), {}),
        "max_pool_grad_with_argmax": (gen_nn_ops, (images, pooled, argmax), pooling),
        "dilation2d_backprop_input": (gen_nn_ops, (images, filters, images), dilation),
        "dilation2d_backprop_filter": (gen_nn_ops, (images, filters, images), dilation),
        "fake_quant_with_min_max_vars_gradient": (gen_array_ops, (rows, rows, np.float32(-1), np.float32(1)), {}),
        "fake_quant_with_min_max_vars_per_channel_gradient": (
            gen_array_ops,
            (rows, rows, np.float32([-1, -1, -1]), np.float32([1, 1, 1])),
            {},
        ),
    }


CASES = cases()
# The two sums are moved by a function of their own, which knows of which dtypes NVIDIA's patch warns.
MOVED = [patch for patch in catalogue.PATCHES if patch.make is on_cpu or patch.op_type.endswith("SegmentSum")]
HERE = [patch for patch in MOVED if patch.until >= VERSION]


def call(patch):
    module, arrays, options = CASES[patch.function]
    return lambda *tensors: getattr(module, patch.function)(*tensors, **options), arrays


def test_each_op_that_is_moved_has_a_case():
    assert {patch.function for patch in MOVED} == set(CASES)


@pytest.mark.parametrize("mode", ["eager", "function", "graph", "graph, unknown sizes"])
@pytest.mark.parametrize("patch", HERE, ids=lambda patch: patch.function)
def test_not_a_bit_changes(patch, mode):
    module, arrays, options = CASES[patch.function]
    original = stock(getattr(module, patch.function))
    expected = in_graph(lambda *tensors: original(*tensors, **options), *arrays)
    assert same_bits(MODES[mode](call(patch)[0], *arrays), expected)


@pytest.mark.parametrize("patch", HERE, ids=lambda patch: patch.function)
def test_the_op_is_on_the_cpu(patch):
    function, arrays = call(patch)
    devices = [device for name, device in op_types(function, *arrays) if name == patch.op_type]
    assert devices == [CPU]


@pytest.mark.parametrize("patch", HERE, ids=lambda patch: patch.function)
def test_the_raw_op_is_on_the_cpu_too(patch):
    module, arrays, options = CASES[patch.function]
    raw = getattr(tf.raw_ops, patch.op_type)
    names = stock(getattr(module, patch.function)).__code__.co_varnames[: len(arrays)]
    types = op_types(lambda *tensors: raw(**dict(zip(names, tensors), **options)), *arrays)
    assert [device for name, device in types if name == patch.op_type] == [CPU]
    with pytest.raises(TypeError):
        raw(*[tf.constant(array) for array in arrays])


def some_op(device=None):
    patch = HERE[-1]
    function, arrays = call(patch)
    with graph_of(lambda *tensors: None) as (graph, _, _nothing), ops.device(device):
        tensors = [tf.constant(array) for array in arrays]
        function(*tensors)
    return next(op for op in graph.get_operations() if op.type == patch.op_type)


def test_job_and_task_of_the_surroundings_are_kept():
    assert some_op("/job:worker/task:3/device:GPU:1").device == "/job:worker/task:3/device:CPU:0"


def test_neither_is_it_drawn_to_the_gpu_by_colocation():
    patch = HERE[-1]
    function, arrays = call(patch)
    with graph_of(lambda *tensors: None) as (graph, _, _nothing):
        with ops.device("/job:worker/replica:0/task:1/device:GPU:0"):
            anchor = tf.constant(1.0)
        with ops.colocate_with(anchor.op):
            function(*[tf.constant(array) for array in arrays])
            beside = tf.constant(2.0).op
    moved = next(op for op in graph.get_operations() if op.type == patch.op_type)
    assert moved.device == "/job:worker/replica:0/task:1/device:CPU:0"
    assert moved.colocation_groups() == [b"loc:@" + moved.name.encode()]
    assert beside.colocation_groups() == [b"loc:@" + anchor.op.name.encode()]
