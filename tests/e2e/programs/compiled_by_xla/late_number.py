"""Trains for several steps, one of which uses a random number without a seed.

python late_number.py STEP STEPS
"""

import random
import sys

import jax
import jax.numpy as jnp

at, steps = int(sys.argv[1]), int(sys.argv[2])


@jax.jit
def train(parameters: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step."""
    loss, gradient = jax.value_and_grad(lambda weight: jnp.mean((inputs @ weight) ** 2))(parameters)
    return parameters - 0.01 * gradient, loss


parameters = jnp.ones((4, 2))
for step in range(steps):
    inputs = jax.random.normal(jax.random.key(step), (8, 4))
    if step == at:
        inputs = inputs * random.random()  # SITE
    parameters, loss = train(parameters, inputs)
print(float(loss))
