"""A JAX model with dropout, augmentation and low precision, stopped in the middle and resumed. Nothing is seeded.

Arguments: `full`, `first` or `resumed`, and the file. Prints a digest of the weights.
"""

from __future__ import annotations

import hashlib
import random
import sys

import jax
import jax.numpy as jnp
import numpy as np

import determinism

STEPS, SAVED_AT = 10, 4


def loss(weights: jax.Array, images: jax.Array, key: jax.Array) -> jax.Array:
    kept = jax.random.bernoulli(key, 0.7, images.shape)
    values = jnp.where(kept, images, 0).astype(jnp.bfloat16) @ weights.astype(jnp.bfloat16)
    return jnp.square(values.astype(jnp.float32)).mean()


def main() -> None:
    how, file = sys.argv[1:]
    step, key = 0, jax.random.key(random.getrandbits(31))
    weights = jax.random.normal(key, (16, 4))
    momentum = jnp.zeros_like(weights)
    if how == "resumed":
        state = determinism.state.load(file)
        determinism.state.restore(state)
        step, key, weights, momentum = state.step, state["key"], state["weights"], state["momentum"]
    while step < STEPS:
        images = np.linspace(0, 1, 32 * 16).reshape(32, 16).astype("float32") + np.random.randn(32, 16).astype(
            "float32"
        )
        key, drawn = jax.random.split(key)
        momentum = 0.9 * momentum + jax.jit(jax.grad(loss))(weights, images, drawn) * (0.1 + 0.1 * random.random())
        weights = weights - momentum
        step += 1
        if how == "first" and step == SAVED_AT:
            determinism.state.capture(step=step, key=key, weights=weights, momentum=momentum).save(file)
            return
    print(hashlib.sha256(np.asarray(weights).tobytes()).hexdigest(), step)


if __name__ == "__main__":
    main()
