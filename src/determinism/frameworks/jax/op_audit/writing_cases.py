"""Ops that write, add up or read by index: many contributions go to few places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from determinism.frameworks.jax.op_audit.case import Call, Case, Inputs
from determinism.frameworks.op_audit.arrays import FEW, FLOATS, MANY

_ROWS, _WIDTH = 1 << 13, 32
_AT, _OTHERS = "jax.numpy.ndarray.at[].add", "ops of jax on the CPU"


Run = Callable[[jax.Array, jax.Array, jax.Array], Any]
"""Takes the target, the index and the values."""


def cases() -> Iterator[Case]:
    """All of them."""
    yield Case(_AT, "rows, equal indices", _rows(lambda t, i, v: t.at[i].add(v)), FLOATS)
    yield Case(_AT, "elements, equal indices", _flat(lambda t, i, v: t.at[i].add(v)))
    yield Case(_AT, "multiply, equal indices", _rows(_multiplied))
    yield Case(_AT, "set, equal indices", _rows(lambda t, i, v: t.at[i].set(v)))
    yield Case(_AT, "segment_sum, few segments", _rows(lambda t, i, v: jax.ops.segment_sum(v, i, FEW)))
    yield Case(_AT, "within vmap, equal indices", _rows(_mapped))
    yield Case(_OTHERS, "gather, equal indices", _rows(lambda t, i, v: t[i]), FLOATS)
    yield Case(_OTHERS, "take_along_axis, equal indices", _flat(lambda t, i, v: jnp.take_along_axis(t, i, 0)))
    yield Case(_OTHERS, "bincount with weights, equal values", _flat(lambda t, i, v: jnp.bincount(i, v, length=FEW)))


def _rows(run: Run) -> Callable[[Inputs], Call]:
    """A function of a target of few rows, an index of many of them, and as many rows of values."""
    return lambda inputs: (
        run,
        (inputs.normal(FEW, _WIDTH), inputs.whole(FEW, _ROWS), inputs.normal(_ROWS, _WIDTH)),
    )


def _flat(run: Run) -> Callable[[Inputs], Call]:
    """A function of a target of few elements, an index of many of them, and as many values."""
    return lambda inputs: (run, (inputs.normal(FEW), inputs.whole(FEW, MANY), inputs.normal(MANY)))


def _multiplied(target: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    # It has no gradient for equal indices.
    fixed, factors = jax.lax.stop_gradient((target, values))
    return fixed.at[index].multiply(factors)


def _mapped(target: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    return jax.vmap(lambda t, v: t.at[index].add(v), in_axes=1, out_axes=1)(target, values)
