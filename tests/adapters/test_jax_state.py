"""`determinism.state` with JAX, whose keys are values."""

from __future__ import annotations

import jax
import pytest

from determinism.state import capture, from_bytes, restore


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_a_restored_key_draws_the_same_numbers(kind: str) -> None:
    key, _ = jax.random.split(jax.random.key(1, impl=kind))
    state = from_bytes(capture(key=key, step=3).to_bytes())
    restore(state)

    assert str(jax.random.key_impl(state["key"])) == str(jax.random.key_impl(key))
    assert jax.random.normal(state["key"], (3,)).tolist() == jax.random.normal(key, (3,)).tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool", "complex64"])
def test_arrays_are_restored(dtype: str) -> None:
    tree = {"weights": [jax.numpy.array([[0.0, 1.5]]).astype(dtype)]}
    found = from_bytes(capture(parameters=tree).to_bytes())["parameters"]

    assert isinstance(found["weights"][0], jax.Array)
    assert str(found["weights"][0].dtype) == dtype
    assert bool((found["weights"][0] == tree["weights"][0]).all())
