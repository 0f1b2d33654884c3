"""Makes JAX keys. JAX has no global generator, so nothing is seeded: a program draws from the keys that it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from determinism.seeds.streams import Streams


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
