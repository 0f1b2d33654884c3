"""Trains one of many small models, chosen by the argument, whose steps JAX compiles; all are deterministic.

python models.py NAME
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import optax

STEPS = 4


def layers(key: Any) -> dict[str, Any]:
    """Parameters of a network with one hidden layer."""
    first, second = jax.random.split(key)
    return {"first": jax.random.normal(first, (8, 16)), "second": jax.random.normal(second, (16, 2))}


def apply(values: dict[str, Any], inputs: Any) -> Any:
    """Use the network."""
    return jnp.tanh(inputs @ values["first"]) @ values["second"]


def train(loss_of: Callable[[dict[str, Any], Any], Any], *, wrap: Callable[..., Any] = jax.jit) -> None:
    """Train the network with a loss."""
    key = jax.random.key(0)
    values = layers(key)
    optimizer = optax.adam(1e-2)
    state = optimizer.init(values)

    @wrap
    def step(values: Any, state: Any, inputs: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(values, inputs)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(values, updates), state, loss

    for number in range(STEPS):
        inputs = jax.random.normal(jax.random.fold_in(key, number), (16, 8))
        values, state, loss = step(values, state, inputs)
        print(float(loss))


def scanned(values: dict[str, Any], inputs: Any) -> Any:
    """A loss over a series, by a scan."""

    def cell(state: Any, row: Any) -> Any:
        state = jnp.tanh(state + row @ values["first"])
        return state, state.sum()

    _, sums = jax.lax.scan(cell, jnp.zeros(16), inputs)
    return (sums**2).mean()


def looped(values: dict[str, Any], inputs: Any) -> Any:
    """A loss with a loop of fixed length."""
    out = jax.lax.fori_loop(0, 5, lambda _, hidden: jnp.tanh(hidden) * 1.1, inputs @ values["first"])
    return (out**2).mean()


def branched(values: dict[str, Any], inputs: Any) -> Any:
    """A loss with a branch that depends on the data."""
    out = apply(values, inputs)
    return jax.lax.cond(out.sum() > 0, lambda x: (x**2).mean(), lambda x: jnp.abs(x).mean(), out)


def for_each(values: dict[str, Any], inputs: Any) -> Any:
    """A loss computed for each sample, by vmap."""
    return jax.vmap(lambda row: (apply(values, row) ** 2).sum())(inputs).mean()


def recomputed(values: dict[str, Any], inputs: Any) -> Any:
    """A loss whose activations are recomputed."""
    return (jax.checkpoint(apply)(values, inputs) ** 2).mean()


def scattered(values: dict[str, Any], inputs: Any) -> Any:
    """A loss of values that are added at repeated indices."""
    out = apply(values, inputs)
    return (jnp.zeros((4, 2)).at[jnp.arange(16) % 4].add(out) ** 2).mean()


def dropped(values: dict[str, Any], inputs: Any) -> Any:
    """A loss with dropout, with its own key."""
    kept = jax.random.bernoulli(jax.random.key(7), 0.8, inputs.shape)
    return (apply(values, jnp.where(kept, inputs / 0.8, 0)) ** 2).mean()


def over_devices() -> None:
    """The batch is split over two devices."""
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    split, whole = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (("data",), ()))
    key = jax.random.key(0)
    values = jax.device_put(layers(key), whole)

    @jax.jit
    def step(values: Any, inputs: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda values: (apply(values, inputs) ** 2).mean())(values)
        return jax.tree.map(lambda value, gradient: value - 0.01 * gradient, values, gradients), loss

    for number in range(STEPS):
        inputs = jax.random.normal(jax.random.fold_in(key, number), (16, 8))
        values, loss = step(values, jax.device_put(inputs, split))
        print(float(loss))


MODELS: dict[str, Callable[[], None]] = {
    "plain": lambda: train(lambda values, inputs: (apply(values, inputs) ** 2).mean()),
    "donated": lambda: train(
        lambda values, inputs: (apply(values, inputs) ** 2).mean(), wrap=partial(jax.jit, donate_argnums=(0, 1))
    ),
    "over devices": over_devices,
    **{
        loss.__name__: partial(train, loss)
        for loss in (scanned, looped, branched, for_each, recomputed, scattered, dropped)
    },
}

if __name__ == "__main__":
    MODELS[sys.argv[1]]()
