"""Ops that write, add up or count by index: many contributions go to few places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from determinism.frameworks.op_audit.arrays import FEW, FLOATS, MANY
from determinism.frameworks.tensorflow.op_audit.case import Call, Case, Inputs

ROWS, WIDTH = 1 << 14, 16
_LONG_ROWS = 1 << 17
"""Rows from which on threads write to one variable at a time."""

Run = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Any]
"""Takes the target, the index and the values."""


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _scatters()
    yield from _variables()
    yield from _stitches()
    yield from _reads()
    yield from _counts()


def _rows(run: Run) -> Callable[[Inputs], Call]:
    """A call with a target of few rows, an index of many of them, and as many rows of values."""

    def make(inputs: Inputs) -> Call:
        target, index, values = inputs.leaf(FEW, WIDTH), inputs.whole(FEW, ROWS), inputs.leaf(ROWS, WIDTH)
        return lambda: run(target, index, values)

    return make


def _scatters() -> Iterator[Case]:
    yield Case("tf.scatter_nd", "equal indices", _rows(lambda t, i, v: tf.scatter_nd(i[:, None], v, t.shape)), FLOATS)
    for name in ("add", "sub"):
        yield Case(f"tf.tensor_scatter_nd_{name}", "equal indices", _rows(_tensor_scatter(name)), FLOATS)
    yield Case("tf.tensor_scatter_nd_update", "equal indices", _rows(_tensor_scatter("update")))
    yield Case(
        "tf.tensor_scatter_nd_update",
        "tensor_scatter_nd_max, equal indices",
        _rows(lambda t, i, v: tf.stop_gradient(tf.tensor_scatter_nd_max(t, i[:, None], v))),
    )


def _tensor_scatter(name: str) -> Run:
    return lambda t, i, v: getattr(tf, f"tensor_scatter_nd_{name}")(t, i[:, None], v)


def _variables() -> Iterator[Case]:
    for name in ("add", "sub"):
        dtypes = ("float32", "float64") if name == "add" else ("float32",)
        yield Case("tf.Variable.scatter_add", f"scatter_{name}, equal indices", _variable(_scattered(name)), dtypes)
    for name in ("update", "add"):
        yield Case(
            "tf.compat.v1.scatter_nd_update", f"scatter_nd_{name}, equal indices", _variable(_scattered_nd(name))
        )


def _scattered(name: str) -> Callable[[tf.Variable, tf.Tensor, tf.Tensor], Any]:
    return lambda variable, i, v: getattr(variable, f"scatter_{name}")(tf.IndexedSlices(v, i))


def _scattered_nd(name: str) -> Callable[[tf.Variable, tf.Tensor, tf.Tensor], Any]:
    return lambda variable, i, v: getattr(variable, f"scatter_nd_{name}")(i[:, None], v)


def _variable(write: Callable[[tf.Variable, tf.Tensor, tf.Tensor], Any]) -> Callable[[Inputs], Call]:
    """A call that writes into a variable, which begins as the same each time."""

    def make(inputs: Inputs) -> Call:
        target, index, values = (
            inputs.normal(FEW, WIDTH),
            inputs.whole(FEW, _LONG_ROWS),
            inputs.normal(_LONG_ROWS, WIDTH),
        )
        variable = tf.Variable(target)

        def call() -> tf.Tensor:
            variable.assign(target)
            write(variable, index, values)
            return variable.read_value()

        return call

    return make


def _stitches() -> Iterator[Case]:
    yield Case("tf.dynamic_stitch", "the parallel kernel, equal indices", _stitched(tf.raw_ops.ParallelDynamicStitch))
    yield Case("tf.dynamic_stitch", "equal indices", _stitched(tf.raw_ops.DynamicStitch))


def _stitched(stitch: Callable[..., tf.Tensor]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        # Each place is written only a few times, and wide: so two threads meet at one.
        index = [inputs.whole(1 << 12, 1 << 15) for _ in range(2)]
        values = [inputs.normal(1 << 15, 64) for _ in range(2)]
        return lambda: stitch(indices=index, data=values)

    return make


def _reads() -> Iterator[Case]:
    yield Case("tf.gather", "equal indices", _rows(lambda t, i, v: tf.gather(t, i)), FLOATS)
    yield Case("tf.gather", "gather_nd, equal indices", _rows(lambda t, i, v: tf.gather_nd(t, i[:, None])))
    yield Case("tf.gather", "embedding_lookup, equal indices", _rows(lambda t, i, v: tf.nn.embedding_lookup(t, i)))
    yield Case(
        "tf.convert_to_tensor",
        "of tf.IndexedSlices, equal indices",
        _rows(lambda t, i, v: tf.convert_to_tensor(tf.IndexedSlices(v, i, t.shape))),
    )


def _counts() -> Iterator[Case]:
    yield Case("tf.math.bincount", "with weights, equal values", _counted, ("float32", "float64"))
    yield Case(
        "tf.math.bincount", "without weights, equal values", lambda inputs: _counted(inputs, weighted=False), ("int32",)
    )
    yield Case("tf.histogram_fixed_width", "equal values", _histogram)


def _counted(inputs: Inputs, *, weighted: bool = True) -> Call:
    values = inputs.whole(FEW, MANY)
    weights = inputs.normal(MANY) if weighted else None
    return lambda: tf.math.bincount(values, weights)


def _histogram(inputs: Inputs) -> Call:
    values = inputs.normal(MANY)
    return lambda: tf.histogram_fixed_width(values, [-3.0, 3.0], FEW)
