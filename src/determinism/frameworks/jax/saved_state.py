"""JAX's arrays and keys in the forms that a saved state has. JAX has no global generator."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def generator_states() -> dict[str, Any]:
    """Nothing: keys belong to the program, which gives them as parts."""
    return {}


def restore_generator_states(states: dict[str, Any]) -> None:
    """Put nothing back."""


def rank() -> tuple[int, int] | None:
    """Number of this process and how many there are, if `jax.distributed.initialize` was called; no device is initialised for it."""
    try:
        from jax._src.distributed import global_state
    except ImportError:
        return None
    if not global_state.num_processes or global_state.num_processes < 2:
        return None
    return int(global_state.process_id), int(global_state.num_processes)


def devices() -> dict[str, int]:
    """Nothing: keys do not belong to devices."""
    return {}


def state_of(thing: Any) -> tuple[str, Any] | None:
    """A key is a value, no generator."""
    return None


def put_back(thing: Any, state: Any) -> None:
    """Nothing can be put back into a value."""


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """A copy of an array or key; None if `thing` is neither."""
    if not isinstance(thing, jax.Array):
        return None
    if jax.dtypes.issubdtype(thing.dtype, jax.dtypes.prng_key):
        return np.array(jax.random.key_data(thing)), {"key": str(jax.random.key_impl(thing))}
    array = np.array(thing)
    if array.dtype.isbuiltin == 1:
        return array, {}
    # NumPy itself has no such numbers, bfloat16 for instance.
    return np.frombuffer(array.tobytes(), dtype=np.uint8), {"dtype": str(thing.dtype), "shape": list(array.shape)}


def from_array(array: np.ndarray[Any, Any], description: dict[str, Any]) -> jax.Array:
    """The array or key.

    Args:
        array: What `to_array` gave.
        description: What came with it.
    """
    if "key" in description:
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=description["key"])
    if "dtype" in description:
        dtype = jax.numpy.dtype(description["dtype"])
        array = np.frombuffer(array.tobytes(), dtype=dtype).reshape(description["shape"])
    return jax.numpy.asarray(array)


def gaps() -> list[str]:
    """Nothing is missing."""
    return []
