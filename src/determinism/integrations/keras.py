"""A callback for `model.fit` of Keras: settings, seeds, batches as steps, and the state of the run after each epoch."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import keras

from determinism.errors import UsageError
from determinism.integrations.training import Training, TrainingCallback
from determinism.state import load
from determinism.types import PrecisionName


def _check_path(path: str | os.PathLike[str] | None, *, resume: bool) -> None:
    if resume and path is None:
        raise UsageError(
            "trainer-path-missing",
            "resume=True was given to DeterminismCallback without path=, so there is no state to continue from. Give the file that the "
            'state of the earlier run was saved to: path="run.state".',
        )
    if path is not None and keras.backend.backend() != "tensorflow":
        raise UsageError(
            "keras-backend",
            f"Keras runs on {keras.backend.backend()} here, and DeterminismCallback saves the state of models on TensorFlow only, so "
            "nothing was set. Leave path= out: settings, seeds and steps work with every backend.",
        )


class DeterminismCallback(TrainingCallback, keras.callbacks.Callback):  # type: ignore[misc]  # keras has no annotations
    """Makes `model.fit` deterministic, counts its batches as steps, and lets a run resume bit-exactly after an epoch.

    Settings are applied and seeds set when it is created, so create it before the model. With `path`, the state of the run,
    including the model and its optimizer, is saved to that file at the end of each epoch; with `resume=True` it is read from
    there when `fit` begins, which then continues with the next epoch.

    Example:
        callback = DeterminismCallback(seed=1, path="run.state", resume=os.path.exists("run.state"))
        model = keras.Sequential([keras.layers.Dense(16), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.fit(images, targets, epochs=3, callbacks=[callback])
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        resume: bool = False,
        warn_only: bool = False,
        threads: int | None = None,
        precision: PrecisionName | None = None,
        allow: Collection[str] = (),
        ledger: str | os.PathLike[str] | None = None,
        update_ledger: bool = False,
        **parts: Any,
    ) -> None:
        """Apply the settings, and set the seeds.

        Args:
            seed: As for `determinism.enable`; None leaves it to `keras.utils.set_random_seed`.
            path: The file that the state is saved to.
            resume: Continue from the state in that file.
            warn_only: As for `determinism.enable`.
            threads: As for `determinism.enable`.
            precision: As for `determinism.enable`.
            allow: What may differ in a resumed run, as for `determinism.state.restore`.
            ledger: A [golden](goldens.md): it is written when a training ends, or compared with if it exists.
            update_ledger: Replace an existing golden.
            **parts: Further parts of the state: the program's own generators, objects with `state_dict()` and `load_state_dict()`.

        Raises:
            TraceError: The file is damaged, or is not a golden.
            UsageError: The state of a part cannot be restored, there is no file to resume from, the golden's folder does not
                exist, or Keras does not run on TensorFlow; nothing was set.
        """
        super().__init__()
        _check_path(path, resume=resume)
        self._training = Training(
            type(self).__name__,
            seed,
            warn_only=warn_only,
            threads=threads,
            precision=precision,
            allow=allow,
            ledger=ledger,
            update_ledger=update_ledger,
            parts=parts,
            framework="tensorflow",
        )
        self._path = None if path is None else Path(path)
        self._resume = resume
        self._num_batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Warn of what came too late, and put the state back."""
        self._training.check("the program", self.model._flatten_layers())
        self._num_batches = 0
        if self._resume and self._path is not None:
            state = load(self._path)
            if not self.model.built:
                raise UsageError(
                    "keras-unbuilt",
                    f"The model {self.model.name} has no variables yet to which the state in {self._path} could be restored, so nothing was restored. Give it "
                    "the shape of its inputs before fit: keras.layers.Input as its first layer, or model.build(shape).",
                )
            self.model.optimizer.build(self.model.trainable_variables)
            self._take_parts()
            self._training.restore(state)
            self._num_batches = state.step or 0
            # As `keras.callbacks.BackupAndRestore` does.
            self.model._initial_epoch = state.epoch or 0
            self._resume = False
        self._training.begin_steps(self._num_batches)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a step: a batch, or as many batches as `steps_per_execution` says."""
        self._num_batches += 1
        self._training.count_to(self._num_batches)

    def on_train_end(self, logs: Any = None) -> None:
        """End counting."""
        self._training.end_steps()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save the state."""
        if self._path is not None:
            self._take_parts()
            self._training.capture(epoch=epoch + 1, step=self._num_batches).save(self._path)

    def _take_parts(self) -> None:
        """Add the model and its optimizer, which have their variables by now, to the state."""
        self._training.parts.update(model=self.model, optimizer=self.model.optimizer)
