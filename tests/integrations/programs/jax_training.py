"""Trains with Flax and Optax, saves checkpoints with Orbax, and prints a digest of the weights that it ends with.

    python jax_training.py FOLDER [STEP]

Batches come from a loader that shuffles and adds noise, and the model has dropout.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen, nnx
from flax.training.train_state import TrainState

import determinism
from determinism.integrations import flax
from determinism.integrations.orbax import StateRestore, StateSave

INPUTS = np.sin(np.arange(24 * 6, dtype="float32")).reshape(24, 6)
OPTIMIZER = optax.adam(0.01)


class Loader:
    """Shuffled batches with noise, in an order of their own in each epoch."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        order = np.random.permutation(24)
        for rows in order.reshape(4, 6):
            yield INPUTS[rows] + np.random.normal(size=(6, 6)).astype("float32")


class Linen(linen.Module):
    @linen.compact
    def __call__(self, inputs: Any) -> Any:
        hidden = linen.Dropout(0.2, deterministic=False)(linen.relu(linen.Dense(8)(inputs)))
        return linen.Dense(1)(hidden)


@jax.jit
def linen_step(state: TrainState, inputs: Any, key: Any) -> TrainState:
    def loss(parameters: Any) -> Any:
        predicted = state.apply_fn(
            {"params": parameters}, inputs, rngs={"dropout": jax.random.fold_in(key, state.step)}
        )
        return jnp.mean((predicted[:, 0] - inputs.sum(axis=1)) ** 2)

    return state.apply_gradients(grads=jax.grad(loss)(state.params))


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.last = nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, inputs: Any) -> Any:
        return self.last(self.dropout(nnx.relu(self.first(inputs))))


@nnx.jit
def nnx_step(model: Nnx, optimizer: nnx.Optimizer, inputs: Any) -> None:
    def loss(model: Nnx) -> Any:
        return jnp.mean((model(inputs)[:, 0] - inputs.sum(axis=1)) ** 2)

    optimizer.update(model, nnx.grad(loss)(model))


def batches(loader: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    for number in range(epoch, 3):
        for inputs in loader:
            yield number, inputs


def digest(tree: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))).hexdigest()[:16]


def train_linen(folder: Path, resume: int | None = None, *, whole: bool = True) -> str:
    """Train a Linen model with a `TrainState` that Orbax saves, and the rest of the run beside it."""
    determinism.enable(seed=1)
    loader: Any = determinism.state.resumable(Loader())
    model, keys = Linen(), flax.keys("params", "dropout")
    state = TrainState.create(apply_fn=model.apply, params=model.init(keys, INPUTS)["params"], tx=OPTIMIZER)
    step, first = flax.counted(linen_step), 0
    with ocp.CheckpointManager(folder.absolute()) as manager:
        if resume is not None:
            items: dict[str, Any] = {"training": ocp.args.StandardRestore(state)}
            if whole:
                items["run"] = StateRestore({"loader": loader})
            restored = manager.restore(resume, args=ocp.args.Composite(**items))
            state, first = restored["training"], restored["run"].epoch if whole else resume // 4
        for epoch, inputs in batches(loader, first):
            state = step(state, inputs, keys["dropout"])
            if resume is None and state.step == 6:
                saved = {"training": ocp.args.StandardSave(state), "run": StateSave(epoch=epoch, loader=loader)}
                manager.save(int(state.step), args=ocp.args.Composite(**saved))
    return digest(state.params)


def train_nnx(folder: Path, resume: Path | None = None, *, left_out: str = "") -> str:
    """Train a model of `nnx`; everything is in one state."""
    determinism.enable(seed=1)
    folder.mkdir(exist_ok=True)
    loader: Any = determinism.state.resumable(Loader())
    model = Nnx(flax.rngs("params", "dropout"))
    optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)
    parts = {"model": flax.Saved(model), "optimizer": flax.Saved(optimizer), "loader": loader}
    parts.pop(left_out, None)
    step, first, number = flax.counted(nnx_step), 0, 0
    if resume is not None:
        saved = determinism.state.load(resume)
        determinism.state.restore(saved, **parts)
        first, number = saved.epoch, saved.step
    for epoch, inputs in batches(loader, first):
        step(model, optimizer, inputs)
        number += 1
        if number in (2, 6):
            determinism.state.capture(epoch=epoch, step=number, **parts).save(folder / f"{number}.state")
    return digest(nnx.state(model, nnx.Param))


if __name__ == "__main__":
    print(train_linen(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
