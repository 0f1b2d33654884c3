"""`tf.math.bincount` with weights.

Its kernels for the CPU give each thread sums of its own and add those up, so that the result depends on which thread took
which elements; those for the GPU add with atomic operations. Here the weights are summed per bin in the order in which
they lie, by the kernel of `unsorted_segment_sum` for the CPU. Without weights, or with integers, any order gives the same:
then the stock kernel for the CPU runs.
"""

import functools

from tfdeterminism.placement import cpu


def bincount(stock):
    """A `bincount` of floating-point weights in one order."""

    @functools.wraps(stock)
    def deterministic_bincount(arr, size, weights, name=None):
        from tensorflow.python.framework import dtypes, ops

        with cpu(), ops.name_scope(name, "Bincount", [arr, size, weights]) as scope:
            weights = ops.convert_to_tensor(weights, name="weights")
            arr = ops.convert_to_tensor(arr, dtype=dtypes.int32, name="arr")
            size = ops.convert_to_tensor(size, dtype=dtypes.int32, name="size")
            return _weighted_or_stock(arr, size, weights, scope, lambda name: stock(arr, size, weights, name=name))

    return deterministic_bincount


def dense_bincount(stock):
    """A `dense_bincount` of floating-point weights in one order; matrices are counted row by row, as they are."""

    @functools.wraps(stock)
    def deterministic_dense_bincount(input, size, weights, binary_output=False, name=None):
        from tensorflow.python.framework import ops

        with cpu(), ops.name_scope(name, "DenseBincount", [input, size, weights]) as scope:
            weights = ops.convert_to_tensor(weights, name="weights")
            values = ops.convert_to_tensor(input, name="input")
            size = ops.convert_to_tensor(size, dtype=values.dtype, name="size")

            def count_as_stock(name):
                return stock(values, size, weights, binary_output=binary_output, name=name)

            if binary_output or values.shape.ndims == 2:
                return count_as_stock(scope)
            return _weighted_or_stock(values, size, weights, scope, count_as_stock, only_vectors=True)

    return deterministic_dense_bincount


def _weighted_or_stock(values, size, weights, name, count_as_stock, only_vectors=False):
    from tensorflow.python.ops import array_ops, control_flow_ops, math_ops

    if not weights.dtype.is_floating or weights.shape.num_elements() == 0:
        return count_as_stock(name)
    vector = not only_vectors or values.shape.ndims == 1
    if vector and weights.shape.num_elements() is not None:
        return _weighted(values, size, weights, name)
    # Whether there are weights, or how many dimensions the values have, is known only when it runs.
    weighted = array_ops.size(weights) > 0
    if not vector:
        weighted = math_ops.logical_and(weighted, math_ops.equal(array_ops.rank(values), 1))
    return control_flow_ops.cond(
        weighted, lambda: _weighted(values, size, weights, None), lambda: count_as_stock(None), name=name
    )


def _weighted(values, size, weights, name):
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import array_ops, check_ops, control_flow_ops, gen_math_ops, math_ops

    checks = [
        check_ops.assert_equal(
            array_ops.shape(values), array_ops.shape(weights), message="values and weights must have one shape"
        ),
        control_flow_ops.Assert(size >= 0, ["size must be non-negative", size]),
        control_flow_ops.Assert(math_ops.reduce_all(values >= 0), ["values must be non-negative", values]),
    ]
    with ops.control_dependencies([check for check in checks if check is not None]):
        # What lies beyond the last bin is not counted; segments of a negative number are not summed either.
        bins = gen_math_ops.select(values < size, values, -array_ops.ones_like(values))
        return gen_math_ops.unsorted_segment_sum(weights, bins, size, name=name)
