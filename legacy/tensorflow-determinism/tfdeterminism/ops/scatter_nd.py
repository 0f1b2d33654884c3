"""Updates of elements or slices of a variable that are named by several numbers each, which may come more than once.

As for rows (see `scatter`): what is named is read once each, updated in the order of the updates by kernels of the CPU
that take one after the other, and written once each. To see which names are equal, each becomes one number: its place
among all that could be named.
"""

import functools

from tfdeterminism.ops import scatter
from tfdeterminism.placement import cpu


def resource_scatter_nd(kind):
    """What makes a deterministic `resource_scatter_nd_<kind>`; kind is "add", "sub" or "update"."""

    def make(stock):
        @functools.wraps(stock)
        def deterministic_scatter(ref, indices, updates, use_locking=True, name=None):
            from tensorflow.python.framework import ops
            from tensorflow.python.ops import gen_resource_variable_ops, gen_state_ops

            with ops.name_scope(name, "ResourceScatterNd" + kind.capitalize(), [ref, indices, updates]) as scope:
                updates = ops.convert_to_tensor(updates, name="updates")
                value = gen_resource_variable_ops.read_variable_op(ref, dtype=updates.dtype)
                named, slices = _updated(kind, value, indices, updates)
                update = scatter.stock_of(gen_state_ops.resource_scatter_nd_update)
                return update(ref, named, slices, use_locking=use_locking, name=scope)

        return deterministic_scatter

    return make


def ref_scatter_nd(kind):
    """What makes a deterministic `scatter_nd_<kind>` for the reference variables of TensorFlow 1."""

    def make(stock):
        @functools.wraps(stock)
        def deterministic_scatter(ref, indices, updates, use_locking=kind == "update", name=None):
            from tensorflow.python.framework import ops
            from tensorflow.python.ops import gen_array_ops, gen_state_ops

            with ops.name_scope(name, "ScatterNd" + kind.capitalize(), [ref, indices, updates]) as scope:
                value = gen_array_ops.identity(ref)
                updates = ops.convert_to_tensor(updates, dtype=value.dtype, name="updates")
                named, slices = _updated(kind, value, indices, updates)
                update = scatter.stock_of(gen_state_ops.scatter_nd_update)
                return update(ref, named, slices, use_locking=use_locking, name=scope)

        return deterministic_scatter

    return make


def _updated(kind, value, indices, updates):
    """The names without repetition, and what the updates make of the slices that they name."""
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import array_ops, gen_array_ops, gen_math_ops, math_ops

    with cpu():
        value = array_ops.identity(value)
        indices = ops.convert_to_tensor(indices, name="indices")
        places = _places(indices, value)
        _, positions = array_ops.unique(array_ops.reshape(places, [-1]), out_idx=indices.dtype)
        count = math_ops.reduce_max(array_ops.concat([positions, -array_ops.ones([1], positions.dtype)], axis=0)) + 1
        # Of equal names the first stands for all.
        numbers = math_ops.range(array_ops.shape(positions, out_type=positions.dtype)[0])
        first = gen_math_ops.unsorted_segment_min(numbers, positions, count)
        named = array_ops.gather(array_ops.reshape(indices, [-1, array_ops.shape(indices)[-1]]), first)
        positions = array_ops.reshape(positions, array_ops.shape(places))
        change = scatter.CHANGES[kind]
        return named, change(gen_array_ops.gather_nd(value, named), positions, updates)


def _places(indices, value):
    """The number of each name among all that could be given; what is out of range is refused."""
    from tensorflow.python.framework import dtypes, ops
    from tensorflow.python.ops import array_ops, control_flow_ops, math_ops

    wide = math_ops.cast(indices, dtypes.int64)
    sizes = array_ops.shape(value, out_type=dtypes.int64)[: array_ops.shape(indices)[-1]]
    inside = math_ops.reduce_all(math_ops.logical_and(wide >= 0, wide < sizes))
    check = control_flow_ops.Assert(
        inside, ["indices do not index into a variable of shape", array_ops.shape(value), indices]
    )
    with ops.control_dependencies([check] if check is not None else []):
        strides = math_ops.cumprod(sizes, exclusive=True, reverse=True)
        return math_ops.reduce_sum(wide * strides, axis=-1)
