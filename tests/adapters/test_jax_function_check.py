"""`determinism.check(fn)` with JAX: arrays, tree definitions and compiled functions are values."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import determinism
from determinism.errors import StateError
from determinism.types import Verdict

TREE = jax.tree.structure({"weight": 1})
KEY = jax.random.key(0)
WEIGHT = np.ones(3, np.float32)


@jax.jit
def step(parameters: Any, x: Any) -> Any:
    return {"weight": parameters["weight"] - 0.1 * (parameters["weight"] * x).sum()}


def trained(x: Any) -> Any:
    parameters = {"weight": jnp.ones(3)}
    for _ in range(2):
        parameters = step(parameters, x)
    return parameters


def with_a_key_and_a_tree() -> Any:
    return jax.tree.unflatten(TREE, [jax.random.normal(KEY, (3,))])


def from_entropy(x: Any) -> Any:
    return step({"weight": jnp.asarray(np.random.RandomState().rand(3))}, x)


@jax.jit
def scaled(x: Any) -> Any:
    return x * WEIGHT


def with_an_array_that_changes() -> Any:
    made = scaled(jnp.ones(3)) + WEIGHT
    WEIGHT[0] += 1
    return made


def test_jitted_functions_with_array_arguments_are_the_same() -> None:
    assert determinism.check(trained, jnp.ones(3)).verdict is Verdict.SAME
    assert determinism.check(step, {"weight": jnp.ones(3)}, x=jnp.ones(3)).verdict is Verdict.SAME


def test_keys_and_tree_definitions_are_values() -> None:
    assert determinism.check(with_a_key_and_a_tree, runs=3).verdict is Verdict.SAME


def test_numbers_from_system_entropy_are_different() -> None:
    assert determinism.check(from_entropy, jnp.ones(3)).verdict is Verdict.DIFFERENT


def test_an_array_that_a_compiled_function_uses_is_restored() -> None:
    assert determinism.check(with_an_array_that_changes).verdict is Verdict.SAME
    assert WEIGHT[0] == 1


def test_a_check_after_a_failed_one_works() -> None:
    def fails(x: Any) -> None:
        raise ValueError(step({"weight": x}, x)["weight"].shape)

    with pytest.raises(ValueError, match="3"):
        determinism.check(fails, jnp.ones(3))
    assert determinism.check(trained, jnp.ones(3)).verdict is Verdict.SAME


REFERENCE = jax.new_ref(jnp.zeros(3)) if hasattr(jax, "new_ref") else None


def adds_to_a_reference(x: Any) -> Any:
    assert REFERENCE is not None
    REFERENCE[...] += x
    return REFERENCE[...]


def reads_a_reference_that_the_clock_fills(x: Any) -> Any:
    assert REFERENCE is not None
    REFERENCE[...] = x * (time.perf_counter_ns() % 1_000_000_007)
    return REFERENCE[...] + 1


@pytest.mark.skipif(REFERENCE is None, reason="this version of JAX has no mutable references")
def test_the_value_of_a_reference_is_restored() -> None:
    assert determinism.check(adds_to_a_reference, jnp.ones(3), runs=3).verdict is Verdict.SAME
    assert REFERENCE is not None and not REFERENCE[...].any()
    assert determinism.check(reads_a_reference_that_the_clock_fills, jnp.ones(3)).verdict is Verdict.DIFFERENT


def test_a_donated_array_is_named() -> None:
    doubled = jax.jit(lambda x: x * 2, donate_argnums=0)
    with pytest.raises(StateError, match=r"^args\[0\] cannot be restored .* donated"):
        determinism.check(lambda x: doubled(x), jnp.ones(3))
    assert determinism.check(lambda x: doubled(jnp.copy(x)), jnp.ones(3)).verdict is Verdict.SAME
