"""Reseeds every generator when an epoch of `model.fit` begins."""

from __future__ import annotations

from typing import Any

import keras


class ReseedEachEpoch(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no annotations
    """Begins each epoch with seeds of its own, so that it draws the same whether or not earlier epochs ran.

    For `model.fit(..., initial_epoch=N, callbacks=[...])`: a resumed run draws what the full one drew in its epoch N.
    """

    def __init__(self, seeds: Any, task: str) -> None:
        """Take the seeds.

        Args:
            seeds: Has `begin(epoch=, task=)`.
            task: The task name to begin epochs with.
        """
        super().__init__()
        self._seeds = seeds
        self._task = task

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the epoch."""
        self._seeds.begin(epoch=epoch, task=self._task)
