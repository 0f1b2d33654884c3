"""Determinism in JAX outside of recording: settings, keys from seeds, conversion of arrays and keys for saved states, and what `determinism.check(fn)`
restores.

Keys, tree definitions and compiled functions are immutable, and arrays change only if they are donated; so none of them is copied or restored. The
content of a mutable reference (`jax.new_ref`) is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from determinism.frameworks.snapshots import Contents
from determinism.knowledge.settings import Control
from determinism.seeds import Streams

# JAX's settings that `determinism.enable` reads and writes.


def has_begun(moment: str) -> bool:
    """Whether it is too late for settings that must be made before a moment.

    Args:
        moment: "device" or "collectives": XLA reads its flags when the first back end is made.
    """
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def _configuration(name: str) -> Control:
    def read() -> Any:
        return getattr(jax.config, name)

    return Control(read, lambda value: jax.config.update(name, value))


CONTROLS: dict[str, Control] = {
    name: _configuration(name)
    for name in ("jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_matmul_precision")
}
"""By the names that the facts use."""


def generator_states() -> dict[str, Any]:
    """Return an empty dictionary: keys belong to the program, which passes them as parts of its state."""
    return {}


def restore_generator_states(states: dict[str, Any]) -> None:
    """Restore nothing."""


def rank() -> tuple[int, int] | None:
    """Number of this process and total number, if `jax.distributed.initialize` was called; does not initialise a device."""
    try:
        from jax._src.distributed import global_state
    except ImportError:
        return None
    if not global_state.num_processes or global_state.num_processes < 2:
        return None
    return int(global_state.process_id), int(global_state.num_processes)


def devices() -> dict[str, int]:
    """Return an empty dictionary: keys do not belong to devices."""
    return {}


def state_of(thing: Any) -> tuple[str, Any] | None:
    """Return None: a key is a value, not a generator."""
    return None


def put_back(thing: Any, state: Any) -> None:
    """Do nothing: values have no state to restore."""


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """A copy of an array or key; None if `thing` is neither."""
    if not isinstance(thing, jax.Array):
        return None
    if jax.dtypes.issubdtype(thing.dtype, jax.dtypes.prng_key):
        return np.array(jax.random.key_data(thing)), {"key": str(jax.random.key_impl(thing))}
    array = np.array(thing)
    if array.dtype.isbuiltin == 1:
        return array, {}
    # NumPy itself has no such dtype, for instance bfloat16.
    return np.frombuffer(array.tobytes(), dtype=np.uint8), {"dtype": str(thing.dtype), "shape": list(array.shape)}


def from_array(array: np.ndarray[Any, Any], description: dict[str, Any]) -> jax.Array:
    """The array or key that `to_array` converted to this array and description."""
    if "key" in description:
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=description["key"])
    if "dtype" in description:
        dtype = jax.numpy.dtype(description["dtype"])
        array = np.frombuffer(array.tobytes(), dtype=dtype).reshape(description["shape"])
    return jax.numpy.asarray(array)


def gaps() -> list[str]:
    """What a saved state lacks: nothing."""
    return []


# Makes JAX keys. JAX has no global generator, so nothing is seeded: a program draws from the keys that it gets.


def key(streams: Streams, name: str) -> jax.Array:
    """A key of the default kind (`jax_default_prng_impl`) with a stream of its own.

    All bits of the key come from the hash, whatever its length; `jax.random.key(seed)` would use only 32 or 64 bits.

    Args:
        streams: The seed streams that it draws from.
        name: Distinguishes it from others.
    """
    kind = str(jax.config.jax_default_prng_impl)  # type: ignore[attr-defined]
    # Only the shape of this key is needed: how many words a key of this kind has.
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=kind))).shape
    words = streams.words("jax", name, kind, count=shape[-1])
    return jax.random.wrap_key_data(jax.numpy.array(words, dtype="uint32"), impl=kind)


def seed(streams: Streams) -> None:
    """Seed nothing: there is no global generator."""


def capture() -> Callable[[], None]:
    """Save nothing: there is no global generator; return a function that does nothing."""
    return lambda: None


def reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    """Return None: JAX objects cannot be seeded in place."""
    return None


_EXTENSION = ("jaxlib", "jax.jaxlib")


_REFERENCES = frozenset({"Ref", "ArrayRef", "MutableArray"})
"""Names that the class of mutable references has had, newest first: https://docs.jax.dev/en/latest/array_refs.html."""


def contents_of(thing: Any) -> list[Contents] | None:
    """The Python-visible content of a JAX object; None for every other object."""
    kind = type(thing)
    if kind.__module__.startswith("jax.") and kind.__name__ in _REFERENCES:
        held = thing[...]
        return [Contents(lambda: thing.__setitem__(..., held), is_whole=True)]
    if isinstance(thing, jax.Array) and hasattr(thing, "is_deleted"):
        return [] if thing.is_deleted() else [Contents(lambda: _require_present(thing), is_whole=True)]
    # Objects of jaxlib are never restored: PyTreeDef.__setstate__ fails, and clear_all() may hang in the next check.
    if not any(_is_of_extension(base.__module__) for base in type(thing).__mro__):
        return None
    inner = getattr(thing, "__wrapped__", None)
    return [Contents(children=[] if inner is None else [("__wrapped__", inner)], is_whole=True)]


def _require_present(array: Any) -> None:
    """Check that an array was not donated: its memory cannot be restored.

    Raises:
        RuntimeError: It was donated.
    """
    if array.is_deleted():
        raise RuntimeError(
            "the array was donated (donate_argnums or donate_argnames), so its memory has been reused. Donate a copy "
            "inside the function, as with jax.numpy.copy"
        )


def _is_of_extension(module: str) -> bool:
    return module in _EXTENSION or module.startswith(tuple(f"{name}." for name in _EXTENSION))


def capture_generators() -> None:
    """Save nothing: keys belong to the program."""


def restore_generators(states: None) -> None:
    """Restore nothing."""


def undisturbed() -> AbstractContextManager[None]:
    """Hide nothing: nothing is read."""
    return nullcontext()
