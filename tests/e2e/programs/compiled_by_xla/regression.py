"""Fits a linear model; an argument plants one fault: `key`, `order`, `numpy`, `rate`."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

seed = time.time_ns() % 10**9 if "key" in sys.argv else 0
key = jax.random.key(seed)  # SITE key
parameters = {"weight": jax.random.normal(key, (8, 4)), "bias": jnp.zeros(4)}
rate = 0.1 + (time.time_ns() % 10**9) * 1e-10 if "rate" in sys.argv else 0.1
names = {"ada", "bea", "cem", "dov", "eva", "fay", "gus", "hal", "ida", "jon", "kim"}
order = list(names) if "order" in sys.argv else sorted(names)
if "numpy" not in sys.argv:
    np.random.seed(0)


def loss_of(parameters, x, y):
    return jnp.mean((x @ parameters["weight"] + parameters["bias"] - y) ** 2)


@jax.jit
def step(parameters, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    return jax.tree.map(lambda value, gradient: value - rate * gradient, parameters, gradients), loss


shift = np.array([sum(map(ord, name)) for name in order[:8]], np.float32)
for _ in range(10):
    x = np.random.normal(size=(16, 8)).astype(np.float32) + shift / 1000
    y = np.random.normal(size=(16, 4)).astype(np.float32)
    parameters, loss = step(parameters, x, y)  # SITE step
print(float(loss))
