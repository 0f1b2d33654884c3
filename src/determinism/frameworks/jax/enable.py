"""Determinism in JAX outside of recording: settings, keys from seeds, the forms of arrays and keys in saved states, and what `determinism.check(fn)`
puts back.

Keys, tree definitions and compiled functions do not change, and arrays only where they are donated; so nothing of them is copied or put back. What
a mutable reference (`jax.new_ref`) holds is.
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


_EXTENSION = ("jaxlib", "jax.jaxlib")


_REFERENCES = frozenset({"Ref", "ArrayRef", "MutableArray"})
"""Names that the class of mutable references has had, the newest first: https://docs.jax.dev/en/latest/array_refs.html."""


def contents_of(thing: Any) -> list[Contents] | None:
    """What an object of JAX holds for Python; None for every other object."""
    kind = type(thing)
    if kind.__module__.startswith("jax.") and kind.__name__ in _REFERENCES:
        held = thing[...]
        return [Contents(lambda: thing.__setitem__(..., held), is_whole=True)]
    if isinstance(thing, jax.Array) and hasattr(thing, "is_deleted"):
        return [] if thing.is_deleted() else [Contents(lambda: _require_present(thing), is_whole=True)]
    # Nothing of jaxlib is ever restored: PyTreeDef.__setstate__ fails, and clear_all() may hang in the next check.
    if not any(_is_of_extension(base.__module__) for base in type(thing).__mro__):
        return None
    inner = getattr(thing, "__wrapped__", None)
    return [Contents(children=[] if inner is None else [("__wrapped__", inner)], is_whole=True)]


def _require_present(array: Any) -> None:
    """See that nobody has taken the memory of an array: it cannot be given back.

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
    """Nothing: keys belong to the program."""


def restore_generators(states: None) -> None:
    """Put nothing back."""


def undisturbed() -> AbstractContextManager[None]:
    """Nothing needs to be hidden: nothing is read."""
    return nullcontext()
