"""Updates of some rows of a variable, where an index may come more than once.

On the GPU, and from TensorFlow 2.1 on also on the CPU, several threads change the same row at once. Here the rows that
are named are read once each, what happens to each of them is computed in the order of the updates by kernels of the CPU
that take one update after the other, and they are written once each. This is what the kernels for the CPU compute with a
single thread, to the last bit.

Reading and writing are two operations: two such updates of one variable that nothing orders, as in asynchronous training,
may lose one of them, where the stock op would have kept both in either order.
"""

import functools

from tfdeterminism.placement import cpu


def resource_scatter(kind):
    """What makes a deterministic `resource_scatter_<kind>`; kind is "add", "sub", "mul" or "update"."""

    def make(stock):
        @functools.wraps(stock)
        def deterministic_scatter(resource, indices, updates, name=None):
            from tensorflow.python.framework import ops
            from tensorflow.python.ops import gen_resource_variable_ops

            with ops.name_scope(name, "ResourceScatter" + kind.capitalize(), [resource, indices, updates]) as scope:
                updates = ops.convert_to_tensor(updates, name="updates")
                named, positions = _named_once(indices)
                rows = gen_resource_variable_ops.resource_gather(resource, named, dtype=updates.dtype)
                rows = CHANGES[kind](rows, positions, updates)
                return stock_of(gen_resource_variable_ops.resource_scatter_update)(resource, named, rows, name=scope)

        return deterministic_scatter

    return make


def ref_scatter(kind):
    """What makes a deterministic `scatter_<kind>` for the reference variables of TensorFlow 1."""

    def make(stock):
        @functools.wraps(stock)
        def deterministic_scatter(ref, indices, updates, use_locking=False, name=None):
            from tensorflow.python.framework import ops
            from tensorflow.python.ops import gen_array_ops, gen_state_ops

            with ops.name_scope(name, "Scatter" + kind.capitalize(), [ref, indices, updates]) as scope:
                named, positions = _named_once(indices)
                rows = gen_array_ops.gather_v2(ref, named, axis=0)
                rows = CHANGES[kind](rows, positions, ops.convert_to_tensor(updates, dtype=rows.dtype, name="updates"))
                update = stock_of(gen_state_ops.scatter_update)
                return update(ref, named, rows, use_locking=use_locking, name=scope)

        return deterministic_scatter

    return make


def stock_of(function):
    """The stock op, also where it is patched."""
    return getattr(function, "__wrapped__", function)


def _named_once(indices):
    """The indices without repetition, and for each index its place among those, in the shape of the indices."""
    from tensorflow.python.framework import dtypes, ops
    from tensorflow.python.ops import array_ops

    indices = ops.convert_to_tensor(indices, name="indices")
    with cpu():
        named, positions = array_ops.unique(array_ops.reshape(indices, [-1]), out_idx=dtypes.int64)
        return named, array_ops.reshape(positions, array_ops.shape(indices))


def _full(rows, positions, updates):
    """The updates, one for each index; a single number is an update for all."""
    from tensorflow.python.ops import array_ops

    if updates.shape.ndims != 0:
        return updates
    return array_ops.fill(array_ops.concat([array_ops.shape(positions), array_ops.shape(rows)[1:]], axis=0), updates)


def _add(rows, positions, updates):
    from tensorflow.python.ops import array_ops, gen_array_ops

    with cpu():
        return gen_array_ops.tensor_scatter_add(
            rows, array_ops.expand_dims(positions, -1), _full(rows, positions, updates)
        )


def _subtract(rows, positions, updates):
    from tensorflow.python.ops import array_ops, gen_array_ops

    with cpu():
        return gen_array_ops.tensor_scatter_sub(
            rows, array_ops.expand_dims(positions, -1), _full(rows, positions, updates)
        )


def _one_row_each(rows, positions, updates):
    """Positions and updates with one dimension for the updates, whose shapes are checked."""
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import array_ops, check_ops

    updates = _full(rows, positions, updates)
    expected = array_ops.concat([array_ops.shape(positions), array_ops.shape(rows)[1:]], axis=0)
    fits = check_ops.assert_equal(
        array_ops.shape(updates), expected, message="updates must have the shape of indices, then that of a row"
    )
    with ops.control_dependencies([fits] if fits is not None else []):
        flat = array_ops.concat([[-1], array_ops.shape(rows)[1:]], axis=0)
        flat = array_ops.concat([array_ops.reshape(array_ops.size(positions), [1]), flat[1:]], axis=0)
        return array_ops.reshape(positions, [-1]), array_ops.reshape(updates, flat)


def _multiply(rows, positions, updates):
    from tensorflow.python.ops import array_ops, gen_math_ops, math_ops

    with cpu():
        positions, updates = _one_row_each(rows, positions, updates)
        count = array_ops.shape(rows, out_type=positions.dtype)[0]
        factors = array_ops.concat([rows, updates], axis=0)
        return gen_math_ops.unsorted_segment_prod(
            factors, array_ops.concat([math_ops.range(count), positions], axis=0), count
        )


def _take_last(rows, positions, updates):
    from tensorflow.python.ops import array_ops, gen_math_ops, math_ops

    with cpu():
        positions, updates = _one_row_each(rows, positions, updates)
        count = array_ops.shape(rows, out_type=positions.dtype)[0]
        places = math_ops.range(array_ops.shape(positions, out_type=positions.dtype)[0])
        return array_ops.gather(updates, gen_math_ops.unsorted_segment_max(places, positions, count))


CHANGES = {"add": _add, "sub": _subtract, "mul": _multiply, "update": _take_last}
