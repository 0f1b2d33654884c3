"""Ops that draw numbers from a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from determinism.frameworks.jax.op_audit.case import Call, Case, Inputs

_DRAWN = 1 << 16


def cases() -> Iterator[Case]:
    """All of them."""
    name = "jax.random.normal"
    yield Case(name, "normal", _keyed(lambda key: jax.random.normal(key, (_DRAWN,))))
    yield Case(name, "uniform", _keyed(lambda key: jax.random.uniform(key, (_DRAWN,))))
    yield Case(name, "bernoulli", _keyed(lambda key: jax.random.bernoulli(key, 0.5, (_DRAWN,))))
    yield Case(name, "split", _keyed(lambda key: jax.random.key_data(jax.random.split(key, 64))))
    yield Case(name, "rbg", _keyed(lambda key: jax.random.normal(key, (_DRAWN,)), "rbg"))
    yield Case("ops of jax on the CPU", "permutation", _keyed(lambda key: jax.random.permutation(key, _DRAWN)))


def _keyed(run: Callable[[jax.Array], Any], kind: str = "threefry2x32") -> Callable[[Inputs], Call]:
    """A function of the words of a key."""

    def make(inputs: Inputs) -> Call:
        words = jax.random.key_data(jax.random.key(7, impl=kind))
        return lambda data: run(jax.random.wrap_key_data(data, impl=kind)), (words,)

    return make
