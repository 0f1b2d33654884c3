"""Seeds every generator anew when an epoch of `model.fit` begins."""

from __future__ import annotations

from typing import Any

import keras


class ReseedEachEpoch(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no annotations
    """Moves the program to a new epoch, so that an epoch draws the same whether or not the ones before it ran.

    For `model.fit(..., initial_epoch=N, callbacks=[...])`: a resumed run draws what the full one drew in its epoch N.
    """

    def __init__(self, seeds: Any, task: str) -> None:
        """Take the seeds.

        Args:
            seeds: Has `begin(epoch=, task=)`.
            task: Under which name epochs are begun.
        """
        super().__init__()
        self._seeds = seeds
        self._task = task

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the epoch."""
        self._seeds.begin(epoch=epoch, task=self._task)
