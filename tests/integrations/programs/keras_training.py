"""Trains with Keras, saves the state after each epoch, and prints a digest of the weights that it ends with.

    python keras_training.py FOLDER [STATE]

The data set draws random numbers for each batch, and the model has dropout.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from determinism.integrations.keras import DeterminismCallback

INPUTS = np.sin(np.arange(48 * 6, dtype="float32")).reshape(48, 6)
TARGETS = INPUTS.sum(axis=1, keepdims=True)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        rows = slice(16 * number, 16 * number + 16)
        noise = np.random.normal(size=(16, 6)).astype("float32")
        return INPUTS[rows] + noise, TARGETS[rows] + random.random()


class Kept(keras.callbacks.Callback):
    """Keeps the state of each epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (self.folder / "run.state").exists():
            shutil.copy(self.folder / "run.state", self.folder / f"{epoch}.state")
        else:
            self.model.save(self.folder / f"{epoch}.keras")


def train(
    folder: Path, state: Path | None = None, *, arrays: bool = False, with_callback: bool = True, **options: Any
) -> str:
    """Train, and give the digest of the weights; states go to the folder."""
    folder.mkdir(exist_ok=True)
    keras.backend.clear_session()
    callbacks: list[Any] = [Kept(folder)]
    if with_callback:
        if state is not None:
            shutil.copy(state, folder / "run.state")
        callbacks.insert(0, DeterminismCallback(seed=1, path=folder / "run.state", resume=state is not None))
    else:
        keras.utils.set_random_seed(1)
    first = 0
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model: Any = keras.Sequential([keras.layers.Input((6,)), *layers])
    model.compile("adam", "mse", **options)
    if state is not None and not with_callback:
        # As Keras itself goes on: the saved model with its optimizer, and the number of the epoch.
        model, first = keras.models.load_model(state.with_suffix(".keras")), int(state.stem) + 1
    data = {"x": INPUTS, "y": TARGETS, "batch_size": 16} if arrays else {"x": Batches()}
    model.fit(**data, epochs=3, initial_epoch=first, verbose=0, callbacks=callbacks)
    return hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in model.get_weights())).hexdigest()[:16]


if __name__ == "__main__":
    print(train(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
