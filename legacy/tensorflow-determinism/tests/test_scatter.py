"""Updates of rows of variables, with indices that come more than once."""

import numpy as np
import pytest
import tensorflow as tf
from running import same_bits, stock
from tensorflow.python.ops import gen_resource_variable_ops, gen_state_ops

v1 = tf.compat.v1
RANDOM = np.random.RandomState(0)
START = RANDOM.randn(5, 3).astype(np.float32)
INDICES = np.int32([4, 0, 4, 4, 2, 0])
UPDATES = RANDOM.randn(6, 3).astype(np.float32)
KINDS = ["add", "sub", "mul", "update"]


def one_after_the_other(kind, start, indices, updates):
    """What the updates give in their order."""
    rows = start.copy()
    for index, update in zip(np.ravel(indices), np.reshape(updates, (-1, *start.shape[1:]))):
        if kind == "update":
            rows[index] = update
        else:
            rows[index] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[kind](rows[index], update)
    return rows


def on_resource(function, indices=INDICES, updates=UPDATES, start=START):
    variable = tf.Variable(start)
    function(variable.handle, indices, updates)
    return variable.numpy()


def in_session(kind, make, resource, feed_shapes=True, start=START, indices=INDICES, updates=UPDATES):
    with tf.Graph().as_default() as graph:
        variable = v1.get_variable("v", initializer=start, use_resource=resource)
        fed = [
            v1.placeholder(np.asarray(array).dtype, np.shape(array) if feed_shapes else None)
            for array in (indices, updates)
        ]
        target = variable.handle if resource else variable
        with tf.control_dependencies([make(target, *fed)]):
            result = tf.identity(variable.read_value() if resource else variable._ref())
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            return session.run(result, dict(zip(fed, (indices, updates)))), [op.type for op in graph.get_operations()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.complex64])
@pytest.mark.parametrize("ids", [np.int32, np.int64])
def test_updates_of_a_resource_variable_come_in_their_order(kind, dtype, ids):
    function = getattr(gen_resource_variable_ops, "resource_scatter_" + kind)
    start, updates = (START * 9).astype(dtype), (UPDATES * 9).astype(dtype)
    found = on_resource(function, INDICES.astype(ids), updates, start)
    assert same_bits(found, one_after_the_other(kind, start, INDICES, updates))
    if kind != "update":
        # As few rows as these are updated by one thread in each version.
        assert same_bits(found, on_resource(stock(function), INDICES.astype(ids), updates, start))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("known", [True, False], ids=["known shapes", "unknown shapes"])
def test_updates_in_a_session_come_in_their_order(kind, resource, known):
    module, prefix = (gen_resource_variable_ops, "resource_scatter_") if resource else (gen_state_ops, "scatter_")
    found, types = in_session(kind, getattr(module, prefix + kind), resource, feed_shapes=known)
    assert same_bits(found, one_after_the_other(kind, START, INDICES, UPDATES))
    stock_type = ("ResourceScatter" if resource else "Scatter") + kind.capitalize()
    # Rows are written once each, so that the op that writes them has nothing to decide.
    assert types.count(stock_type) == (1 if kind == "update" else 0)


@pytest.mark.parametrize("kind", ["add", "sub", "update"])
def test_the_methods_of_variables_are_covered(kind):
    variable = tf.Variable(START)
    getattr(variable, "scatter_" + kind)(tf.IndexedSlices(tf.constant(UPDATES), tf.constant(INDICES)))
    assert same_bits(variable.numpy(), one_after_the_other(kind, START, INDICES, UPDATES))


def test_inside_a_function_reads_see_the_update():
    variable = tf.Variable(START)

    @tf.function
    def twice():
        variable.scatter_add(tf.IndexedSlices(tf.constant(UPDATES), tf.constant(INDICES)))
        between = variable.read_value()
        variable.scatter_sub(tf.IndexedSlices(tf.constant(UPDATES), tf.constant(INDICES)))
        return between

    once = one_after_the_other("add", START, INDICES, UPDATES)
    assert same_bits(twice().numpy(), once)
    assert same_bits(variable.numpy(), one_after_the_other("sub", once, INDICES, UPDATES))


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_of_indices_scalars_as_rows_and_single_updates(kind):
    function = getattr(gen_resource_variable_ops, "resource_scatter_" + kind)
    matrix = INDICES.reshape(2, 3)
    updates = UPDATES.reshape(2, 3, 3)
    assert same_bits(on_resource(function, matrix, updates), one_after_the_other(kind, START, matrix, updates))
    column, numbers = START[:, 0].copy(), UPDATES[:, 0].copy()
    assert same_bits(
        on_resource(function, INDICES, numbers, column), one_after_the_other(kind, column, INDICES, numbers)
    )
    single = np.float32(1.5)
    everywhere = np.full((6, 3), single)
    assert same_bits(on_resource(function, INDICES, single), one_after_the_other(kind, START, INDICES, everywhere))


@pytest.mark.parametrize("kind", KINDS)
def test_no_indices_change_nothing(kind):
    function = getattr(gen_resource_variable_ops, "resource_scatter_" + kind)
    assert same_bits(on_resource(function, np.int32([]), np.zeros([0, 3], np.float32)), START)


def test_what_is_not_finite_stays_in_its_row():
    updates = UPDATES.copy()
    updates[4] = np.nan, np.inf, -np.inf
    found = on_resource(gen_resource_variable_ops.resource_scatter_add, updates=updates)
    np.testing.assert_equal(found[2], updates[4])
    assert np.isfinite(found[[0, 1, 3, 4]]).all()


def test_lists_are_taken():
    found = on_resource(gen_resource_variable_ops.resource_scatter_add, [0, 0], [[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    assert same_bits(found[0], START[0] + np.float32([1, 2, 3]) + np.float32([1, 1, 1]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("indices", "updates"),
    [
        (np.int32([5, 0]), np.ones([2, 3], np.float32)),
        (np.int32([-1, 0]), np.ones([2, 3], np.float32)),
        (np.int32([1, 0]), np.ones([3, 3], np.float32)),
        (np.int32([1, 0]), np.ones([2, 4], np.float32)),
        (np.int32([1, 0]), np.ones([6], np.float32)),
    ],
    ids=["too large", "negative", "too many updates", "rows too long", "flat updates"],
)
def test_what_does_not_fit_is_refused(kind, indices, updates):
    function = getattr(gen_resource_variable_ops, "resource_scatter_" + kind)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        on_resource(function, indices, updates)


def test_an_embedding_trains_to_the_same_bits_twice():
    def trained():
        random = np.random.RandomState(0)
        table = tf.Variable(random.randn(16, 8).astype(np.float32))
        weights = tf.Variable(random.randn(8, 2).astype(np.float32))
        optimizer = tf.keras.optimizers.SGD(0.1)
        for _ in range(3):
            words, labels = random.randint(0, 16, (64, 1024)), random.randint(0, 2, 64)
            with tf.GradientTape() as tape:
                logits = tf.matmul(tf.reduce_mean(tf.gather(table, words), axis=1), weights)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            gradients = tape.gradient(losses, [table, weights])
            assert isinstance(gradients[0], tf.IndexedSlices)
            optimizer.apply_gradients(zip(gradients, [table, weights]))
        return [table.numpy(), weights.numpy()]

    results = [trained() for _ in range(5)]
    assert all(same_bits(result, results[0]) for result in results[1:])
    assert np.isfinite(results[0][0]).all()
