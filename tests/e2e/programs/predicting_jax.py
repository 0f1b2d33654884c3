"""Makes predictions for batches of rows with compiled JAX functions.

python predicting_jax.py --batch N [rows | mixing | drawing | indexing | eager]
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("how")
options = parser.parse_args()

generator = np.random.default_rng(0)
data = generator.normal(size=(24, 8)).astype("f")
weights = {"w": jnp.asarray(generator.normal(size=(8,)).astype("f"))}


@jax.jit
def scaled(weights, x):
    # No op that a vectorized kernel may round differently at the end of an array.
    return jnp.maximum(x * weights["w"], 0)


@jax.jit
def centred(weights, x):
    y = scaled(weights, x)
    return y - y.mean(0)


@jax.jit
def noisy(weights, x):
    return scaled(weights, x) + jax.random.normal(jax.random.key(0), x.shape)


def indexed(weights, x):
    order = jnp.argsort(x[:, 0])
    return scaled(weights, x[order])[jnp.argsort(order)]


def eager(weights, x):
    return jnp.maximum(x * weights["w"], 0)


PREDICT = {"rows": scaled, "mixing": centred, "drawing": noisy, "indexing": indexed, "eager": eager}[options.how]
for start in range(0, len(data), options.batch):
    print(PREDICT(weights, jnp.asarray(data[start : start + options.batch])).shape)  # SITE predict
