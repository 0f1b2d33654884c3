"""Flax in a program's own training loop: keys from the seeds in force, steps, and the state of models and optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from flax import nnx, serialization

from determinism.errors import UsageError
from determinism.integrations.training import ledger
from determinism.session.record import is_recording, step
from determinism.session.seeding import active_seeds

__all__ = ["Saved", "counted", "keys", "ledger", "rngs"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def keys(*names: str) -> dict[str, Any]:
    """A JAX key for each name, from the seeds in force: `model.init(keys("params", "dropout"), images)`.

    Each name has its own stream, so a further one does not change the others.

    Args:
        *names: What the keys are for.

    Raises:
        UsageError: No seeds are in force.

    Returns:
        The keys by their names.

    Example:
        determinism.enable(seed=1)
        variables = model.init(keys("params", "dropout"), images)
    """
    seeds = active_seeds()
    if seeds is None:
        raise UsageError(
            "flax-unseeded",
            f"Keys for {', '.join(names) or 'nothing'} were requested, but no seeds are in force, so none were made. Call determinism.enable(seed=1) "
            "first.",
        )
    return {name: seeds.jax(name) for name in names}


def rngs(*names: str) -> nnx.Rngs:
    """The `nnx.Rngs` with a stream for each name, from the seeds in force: `Model(rngs=rngs("params", "dropout"))`.

    Args:
        *names: The streams.

    Raises:
        UsageError: No seeds are in force.

    Returns:
        The streams.

    Example:
        determinism.enable(seed=1)
        model = Model(rngs=rngs("params", "dropout"))
    """
    return nnx.Rngs(**keys(*names))


def counted(train_step: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let each call of a training step end a step of the recording, if the recorder would count another function's calls.

    Args:
        train_step: The step, compiled or not: `train_step = counted(jax.jit(train_step))`, outside of `jax.jit`.

    Returns:
        A function that does the same.

    Example:
        train_step = counted(nnx.jit(train_step))
    """

    @functools.wraps(train_step)
    def counting(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        result = train_step(*args, **kwargs)
        if is_recording():
            step()
        return result

    return counting


class Saved:
    """A model, optimizer or training state of Flax as a part of `determinism.state`.

    Mutable objects (modules, optimizers and `Rngs` of `nnx`) are restored in place. Others, such as a Linen `TrainState`, are in
    `value`: put the newest one there before the state is captured, and read it there after the state was restored.

    Example:
        training = Saved(TrainState.create(apply_fn=model.apply, params=variables["params"], tx=optax.adam(0.01)))
        ...
        training.value = train_step(training.value, batch)
        determinism.state.capture(training=training, step=number).save("last.state")
    """

    def __init__(self, value: Any) -> None:
        """Take the object to save.

        Args:
            value: An object of `nnx`, a `TrainState`, or anything else that `flax.serialization` knows.
        """
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        """Its arrays in nested dictionaries."""
        if _is_mutable(self.value):
            return {"nnx": nnx.to_pure_dict(nnx.state(self.value))}
        return {"flax": serialization.to_state_dict(self.value)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put arrays back.

        Args:
            state: A result of `state_dict`.
        """
        if _is_mutable(self.value):
            held = nnx.state(self.value)
            nnx.replace_by_pure_dict(held, state["nnx"])
            nnx.update(self.value, held)
        else:
            self.value = serialization.from_state_dict(self.value, state["flax"])

    def determinism_misfits(self, state: dict[str, Any]) -> list[str]:
        """The differences between the saved arrays and those of this object."""
        here = self.state_dict()
        if here.keys() != state.keys():
            return [f"it was saved from an object of {next(iter(state))}, and this is one of {next(iter(here))}"]
        saved, present = _leaves(state), _leaves(here)
        return [
            f"{name} was {saved.get(name, 'not there')}, and here is {present.get(name, 'not there')}"
            for name in sorted({*saved, *present})
            if saved.get(name) != present.get(name)
        ]


def _is_mutable(value: Any) -> bool:
    return isinstance(value, nnx.Pytree)


def _leaves(state: dict[str, Any]) -> dict[str, str]:
    """Type and shape of each array, by its path."""
    found = jax.tree_util.tree_flatten_with_path(state)[0]
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in found
        if hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    }
