"""`parallel_dynamic_stitch`, on which lookups in partitioned embeddings are built.

Its kernel for the CPU copies the rows with several threads; where an index comes twice, the last thread wins. Here
`dynamic_stitch` does it: one row after the other, so that of rows with the same index the last one stays. Without
repeated indices the results are the same.
"""

import functools


def parallel_dynamic_stitch(stock):
    """A `parallel_dynamic_stitch` in which the last of several rows with one index wins."""

    @functools.wraps(stock)
    def deterministic_stitch(indices, data, name=None):
        from tensorflow.python.ops import gen_data_flow_ops

        return gen_data_flow_ops.dynamic_stitch(indices, data, name=name)

    return deterministic_stitch
