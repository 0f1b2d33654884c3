"""Enables determinism in JAX, seeds keys, and converts arrays and keys for saved states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from determinism.knowledge.settings import Control
from determinism.seeds import Streams

# JAX's settings that `determinism.enable` reads and writes.


def has_begun(moment: str) -> bool:
    """Whether it is too late for settings that must come before a moment.

    Args:
        moment: "device" or "collectives": XLA reads its flags when the first back end is made.
    """
    from jax._src import xla_bridge

    asked = getattr(xla_bridge, "backends_are_initialized", None)
    return bool(asked()) if asked is not None else bool(xla_bridge._backends)


def _configuration(name: str) -> Control:
    def read() -> Any:
        return getattr(jax.config, name)

    return Control(read, lambda value: jax.config.update(name, value))


CONTROLS: dict[str, Control] = {
    name: _configuration(name)
    for name in ("jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_matmul_precision")
}
"""By the names that the facts have."""


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


# Makes JAX keys. JAX has no global generator, so nothing is seeded: a program draws from the keys that it is given.


def key(streams: Streams, name: str) -> jax.Array:
    """A key of the default kind (`jax_default_prng_impl`) with a stream of its own.

    All bits of the key come from the hash, whatever its length is; `jax.random.key(seed)` takes 32 or 64 bits.

    Args:
        streams: The place that it draws for.
        name: Tells it from others.
    """
    kind = str(jax.config.jax_default_prng_impl)  # type: ignore[attr-defined]
    # Its value does not matter; it shows how many words a key of this kind has.
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=kind))).shape
    words = streams.words("jax", name, kind, count=shape[-1])
    return jax.random.wrap_key_data(jax.numpy.array(words, dtype="uint32"), impl=kind)


def seed(streams: Streams) -> None:
    """Seed nothing: there is no global generator."""


def capture() -> Callable[[], None]:
    """Note nothing: there is no global generator.

    Returns:
        What puts nothing back.
    """
    return lambda: None


def reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    """No object of JAX's can be seeded in place.

    Args:
        thing: What was registered.
        name: Under which name.
    """
    return None
