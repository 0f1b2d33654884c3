"""Runs the same function eagerly, inside a `tf.function` and as a graph in a session."""

import contextlib

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
VERSION = tuple(int(number) for number in tf.__version__.split(".")[:2])


def eagerly(function, *arrays):
    """What the function gives for these arrays, as arrays."""
    return _as_arrays(function(*[tf.constant(array) for array in arrays]))


def in_function(function, *arrays):
    return _as_arrays(tf.function(function)(*[tf.constant(array) for array in arrays]))


def in_graph(function, *arrays, **options):
    """The same in a session; shapes="known", "unknown" or "rank" says what is known of the placeholders."""
    with graph_of(function, *arrays, **options) as (_, placeholders, outputs), v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return session.run(outputs, dict(zip(placeholders, arrays)))


@contextlib.contextmanager
def graph_of(function, *arrays, **options):
    shapes = options.pop("shapes", "known")
    assert not options
    graph = tf.Graph()
    with graph.as_default():
        placeholders = [v1.placeholder(array.dtype, _shape(array, shapes)) for array in map(np.asarray, arrays)]
        yield graph, placeholders, function(*placeholders)


MODES = {
    "eager": eagerly,
    "function": in_function,
    "graph": in_graph,
    "graph, unknown sizes": lambda function, *arrays: in_graph(function, *arrays, shapes="rank"),
    "graph, unknown shapes": lambda function, *arrays: in_graph(function, *arrays, shapes="unknown"),
}


def op_types(function, *arrays):
    """The ops that the function builds, with the device asked for."""
    with graph_of(function, *arrays) as (graph, _, _outputs):
        return [(op.type, op.device) for op in graph.get_operations()]


def same_bits(left, right):
    """Whether two arrays, or lists of them, are equal in each bit."""
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same_bits(a, b) for a, b in zip(left, right))
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def stock(function):
    """The function of TensorFlow that a replacement replaces."""
    return function.__wrapped__


def _shape(array, shapes):
    return {"known": list(array.shape), "rank": [None] * array.ndim, "unknown": None}[shapes]


def _as_arrays(outputs):
    if isinstance(outputs, (list, tuple)):
        return [_as_arrays(output) for output in outputs]
    return outputs.numpy() if hasattr(outputs, "numpy") else outputs
