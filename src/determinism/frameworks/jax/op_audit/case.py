"""A case: one way to call an op, on inputs that make it vary if anything does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from determinism.frameworks.op_audit.arrays import Arrays

Call = tuple[Callable[..., Any], tuple[jax.Array, ...]]
"""A function and the arrays to call it with: compiled code takes all of them as arguments, so that nothing is folded away."""


@dataclass(frozen=True)
class Case:
    """One way to call an op.

    Attributes:
        op: The name that the op is listed under in what is known.
        name: What of the op it is, and on which inputs.
        make: Makes the inputs and gives the function with them; it is differentiated by those with floating point.
        dtypes: Names of the dtypes to try.
    """

    op: str
    name: str
    make: Callable[[Inputs], Call]
    dtypes: Sequence[str] = ("float32",)


class Inputs:
    """Makes the inputs of one case, the same ones each time, on JAX's default device."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype = jnp.dtype(dtype)
        self.arrays = Arrays(seed)

    def array(self, array: Any) -> jax.Array:
        """An array in the case's dtype."""
        return jnp.asarray(array).astype(self.dtype)

    def normal(self, *shape: int) -> jax.Array:
        """Values of very different sizes."""
        return self.array(self.arrays.normal(*shape))

    def whole(self, high: int, *shape: int) -> jax.Array:
        """Whole numbers below `high`, as int32: as indices of many contributions to few places, they collide."""
        return jnp.asarray(self.arrays.whole(high, *shape))

    def like(self, array: jax.Array) -> jax.Array:
        """Random values to begin a backward pass with."""
        return jnp.asarray(self.arrays.normal(*array.shape)).astype(array.dtype)
