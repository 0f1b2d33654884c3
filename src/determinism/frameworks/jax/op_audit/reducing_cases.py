"""Ops that add up, select, sort or decompose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from determinism.frameworks.jax.op_audit.case import Call, Case, Inputs
from determinism.frameworks.op_audit.arrays import FEW, FLOATS, MANY

_OPS = "ops of jax on the CPU"
_COLUMNS = 512


def cases() -> Iterator[Case]:
    """All of them."""
    for name in ("sum", "mean", "var", "cumsum"):
        run = getattr(jnp, name)
        yield Case(_OPS, f"{name}, all elements", _flat(run), FLOATS if name == "sum" else ("float32",))
        yield Case(_OPS, f"{name}, columns", _flat(_columns(run)))
    yield Case(_OPS, "prod, all elements", _near_one(jnp.prod))
    yield Case(_OPS, "logsumexp, all elements", _flat(jax.nn.logsumexp))
    yield Case(_OPS, "softmax, columns", _flat(_columns(jax.nn.softmax)))
    yield Case(_OPS, "sort", _flat(jnp.sort))
    yield Case(_OPS, "argsort, equal values", _ties(jnp.argsort), ("int32",))
    yield Case(_OPS, "top_k, equal values", _ties(lambda x: jax.lax.top_k(x, 7)), ("int32",))
    yield Case(_OPS, "unique, equal values", _ties(lambda x: jnp.unique(x, size=FEW)), ("int32",))
    for name in ("svd", "qr", "cholesky", "eigh"):
        yield Case(_OPS, name, _positive(getattr(jnp.linalg, name)))


def _columns(run: Callable[..., Any]) -> Callable[[jax.Array], Any]:
    return lambda x: run(x.reshape(-1, _COLUMNS), axis=0)


def _flat(run: Callable[[jax.Array], Any]) -> Callable[[Inputs], Call]:
    return lambda inputs: (run, (inputs.normal(MANY),))


def _near_one(run: Callable[[jax.Array], Any]) -> Callable[[Inputs], Call]:
    return lambda inputs: (run, (inputs.array(inputs.arrays.near_one(MANY)),))


def _ties(run: Callable[[jax.Array], Any]) -> Callable[[Inputs], Call]:
    return lambda inputs: (run, (inputs.whole(FEW, MANY),))


def _positive(run: Callable[[jax.Array], Any]) -> Callable[[Inputs], Call]:
    """A function of a symmetric matrix with positive eigenvalues."""

    def make(inputs: Inputs) -> Call:
        factor = inputs.arrays.normal(48, 48)
        return run, (inputs.array(factor @ factor.T / 48),)

    return make
