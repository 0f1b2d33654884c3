"""A JAX model with dropout whose key and data are unseeded; prints a digest of its weights."""

from __future__ import annotations

import hashlib
import random

import jax
import jax.numpy as jnp
import numpy as np


def main() -> None:
    key = jax.random.key(random.getrandbits(31))
    images = np.random.randn(64, 16).astype("float32")
    weights = jax.random.normal(key, (16, 4))

    def loss(weights: jax.Array, key: jax.Array) -> jax.Array:
        kept = jax.random.bernoulli(key, 0.7, images.shape)
        return jnp.square(jnp.where(kept, images, 0) @ weights).mean()

    for step in range(4):
        weights = weights - 0.1 * jax.jit(jax.grad(loss))(weights, jax.random.fold_in(key, step))
    print(hashlib.sha256(np.asarray(weights).tobytes()).hexdigest())


if __name__ == "__main__":
    main()
