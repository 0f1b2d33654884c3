"""JAX's settings that `determinism.enable` reads and writes."""

from __future__ import annotations

from typing import Any

import jax

from determinism.settings.control import Control


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
