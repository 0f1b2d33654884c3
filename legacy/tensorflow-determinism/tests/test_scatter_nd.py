"""Updates of elements and slices of variables that are named by several numbers."""

import numpy as np
import pytest
import tensorflow as tf
from running import same_bits, stock
from tensorflow.python.ops import gen_state_ops

v1 = tf.compat.v1
RANDOM = np.random.RandomState(0)
START = RANDOM.randn(4, 3, 2).astype(np.float32)
KINDS = ["add", "sub", "update"]
NAMES = {
    "elements": np.int32([[3, 2, 1], [0, 0, 0], [3, 2, 1], [3, 1, 1], [3, 2, 1]]),
    "slices": np.int32([[3, 2], [0, 0], [3, 2], [2, 0], [3, 2]]),
    "rows": np.int32([[3], [0], [3], [2], [3]]),
    "a matrix of names": np.int32([[[3, 2], [0, 0]], [[3, 2], [3, 2]]]),
    "none": np.zeros([0, 2], np.int32),
}


def updates_for(indices):
    return RANDOM.randn(*(indices.shape[:-1] + START.shape[indices.shape[-1] :])).astype(np.float32)


def one_after_the_other(kind, indices, updates):
    found = START.copy()
    places = indices.reshape(-1, indices.shape[-1])
    for place, update in zip(places, updates.reshape((len(places), *updates.shape[indices.ndim - 1 :]))):
        place = tuple(place)
        if kind == "update":
            found[place] = update
        else:
            found[place] = {"add": np.add, "sub": np.subtract}[kind](found[place], update)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("ids", [np.int32, np.int64])
def test_updates_of_a_resource_variable_come_in_their_order(kind, names, ids):
    function = getattr(gen_state_ops, "resource_scatter_nd_" + kind)
    indices, updates = NAMES[names].astype(ids), updates_for(NAMES[names])
    found = {}
    for name, of in (("patched", function), ("stock", stock(function))):
        variable = tf.Variable(START)
        of(variable.handle, indices, updates)
        found[name] = variable.numpy()
    assert same_bits(found["patched"], one_after_the_other(kind, indices, updates))
    assert same_bits(found["patched"], found["stock"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("known", [True, False], ids=["known shapes", "unknown shapes"])
def test_the_public_functions_are_covered_in_a_session(kind, resource, known):
    indices, updates = NAMES["slices"], updates_for(NAMES["slices"])
    with tf.Graph().as_default() as graph:
        variable = v1.get_variable("v", initializer=START, use_resource=resource)
        fed = [v1.placeholder(array.dtype, array.shape if known else None) for array in (indices, updates)]
        with tf.control_dependencies([getattr(v1, "scatter_nd_" + kind)(variable, *fed)]):
            result = tf.identity(variable.read_value() if resource else variable._ref())
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            found = session.run(result, dict(zip(fed, (indices, updates))))
    assert same_bits(found, one_after_the_other(kind, indices, updates))
    types = [op.type for op in graph.get_operations()]
    assert not [name for name in types if name.endswith(("ScatterNdAdd", "ScatterNdSub"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("indices", "shape"),
    [
        (np.int32([[4, 0]]), (1, 2)),
        (np.int32([[0, -1]]), (1, 2)),
        (np.int32([[0, 0]]), (2, 2)),
        (np.int32([[0, 0]]), (1, 3)),
    ],
)
def test_what_does_not_fit_is_refused(kind, indices, shape):
    variable = tf.Variable(START)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        getattr(gen_state_ops, "resource_scatter_nd_" + kind)(variable.handle, indices, np.ones(shape, np.float32))
    assert same_bits(variable.numpy(), START)
