"""Ops whose results vary on a CPU with two threads, and how many different ones are seen."""

import numpy as np
import tensorflow as tf
from running import VERSION
from tensorflow.python.ops import (
    gen_data_flow_ops,
    gen_image_ops,
    gen_math_ops,
    gen_resource_variable_ops,
    gen_state_ops,
)

v1 = tf.compat.v1
RUNS, RUNS_OF_CROPS = 25, 60
_random = np.random.RandomState(0)
_ROWS = 1 << 17
INDICES = _random.randint(0, 16, _ROWS).astype(np.int32)
ROWS = _random.randn(_ROWS, 4).astype(np.float32)


def crop_and_resize_gradient(boxes=256, crop=48):
    grads = _random.randn(boxes, crop, crop, 8).astype(np.float32)
    corners = (np.tile([[0.1, 0.1, 0.9, 0.9]], (boxes, 1)) + _random.rand(boxes, 4) * 0.1).astype(np.float32)
    images = _random.randint(0, 4, boxes).astype(np.int32)

    def build(grads, corners, images):
        return gen_image_ops.crop_and_resize_grad_image(grads, corners, images, [4, 64, 64, 8], T=tf.float32)

    return build, (grads, corners, images)


def weighted_bincount():
    name = "dense_bincount" if hasattr(gen_math_ops, "dense_bincount") else "bincount"
    return lambda values, weights: getattr(gen_math_ops, name)(values, 16, weights), (INDICES, ROWS[:, 0])


def stitch_of_duplicates():
    def build(indices, rows):
        return gen_data_flow_ops.parallel_dynamic_stitch([indices, indices], [rows, rows * 2])

    return build, (INDICES, ROWS)


def resource_scatter_add():
    def build(indices, rows):
        variable = v1.get_variable("v", shape=[16, 4], initializer=v1.zeros_initializer(), use_resource=True)
        with tf.control_dependencies([gen_resource_variable_ops.resource_scatter_add(variable.handle, indices, rows)]):
            return variable.read_value() + 0.0

    return build, (INDICES, ROWS)


def ref_scatter_add():
    def build(indices, rows):
        variable = v1.get_variable("v", shape=[16, 4], initializer=v1.zeros_initializer(), use_resource=False)
        return gen_state_ops.scatter_add(variable, indices, rows) + 0.0

    return build, (INDICES, ROWS)


OPS = [crop_and_resize_gradient, weighted_bincount, stitch_of_duplicates, resource_scatter_add, ref_scatter_add]


def results(op, runs):
    """The bytes of what each run gave, of a graph that gets its inputs from outside: constants would be folded."""
    build, arrays = op()
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("scope", use_resource=False):
        placeholders = [v1.placeholder(array.dtype, array.shape) for array in arrays]
        output = build(*placeholders)
        with v1.Session(graph=graph) as session:
            found = []
            for _ in range(runs):
                session.run(v1.global_variables_initializer())
                found.append(session.run(output, dict(zip(placeholders, arrays))).tobytes())
            return found


def is_seen_to_vary(op):
    """Whether this version's stock op varies often enough to be seen; the others may vary, and are patched all the same."""
    # Rows are scattered by several threads from 2.1 on.
    return op is crop_and_resize_gradient or ("scatter_add" in op.__name__ and VERSION >= (2, 1))


def count_all():
    """How many different results each op gave, and of how many runs."""
    counts = {}
    for op in OPS:
        runs = RUNS_OF_CROPS if op is crop_and_resize_gradient else RUNS
        found = results(op, runs)
        enough = RUNS_OF_CROPS // 2 if op is crop_and_resize_gradient else 1
        # On a busy machine the threads may happen to come in one order for a while.
        while is_seen_to_vary(op) and len(set(found)) <= enough and len(found) < 40 * runs:
            found += results(op, runs)
        counts[op.__name__] = len(set(found)), len(found)
    return counts
