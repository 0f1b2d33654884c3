"""A handler for PyTorch Ignite: settings, seeds, iterations as steps, and the state of the run in what `Checkpoint` saves."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from ignite.engine import Engine, Events

from determinism.integrations.training import Training, TrainingCallback
from determinism.state import State, from_dict
from determinism.types import PrecisionName


class DeterminismHandler(TrainingCallback):
    """Makes a training with Ignite deterministic, counts its iterations as steps, and lets it resume bit-exactly.

    Settings are applied and seeds set when it is created, so create it before the model. Pass it the loader, wrapped by
    `determinism.state.resumable`, and include it in what `Checkpoint` saves and `Checkpoint.load_objects` loads.

    Example:
        loader = determinism.state.resumable(DataLoader(images, batch_size=32, shuffle=True))
        handler = DeterminismHandler(seed=1, loader=loader)
        model = Model()
        trainer = create_supervised_trainer(model, optimizer, loss)
        handler.attach(trainer, model)
        saved = {"model": model, "optimizer": optimizer, "trainer": trainer, "determinism": handler}
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=100), Checkpoint(saved, "checkpoints"))
        if resume:
            Checkpoint.load_objects(saved, torch.load("checkpoints/checkpoint_300.pt"))
        trainer.run(loader, max_epochs=3)
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
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
            seed: As for `determinism.enable`; None leaves it to `ignite.utils.manual_seed`.
            warn_only: As for `determinism.enable`.
            threads: As for `determinism.enable`.
            precision: As for `determinism.enable`.
            allow: What may differ in a resumed run, as for `determinism.state.restore`.
            ledger: A [golden](goldens.md): it is written when a training ends, or compared with if it exists.
            update_ledger: Replace an existing golden.
            **parts: Parts of the state: the loader, the program's own generators, objects with `state_dict()` and `load_state_dict()`.

        Raises:
            TraceError: The file is damaged, or is not a golden.
            UsageError: The state of a part cannot be restored, or the golden's folder does not exist; nothing was set.
        """
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
        )
        self._resumed: State | None = None
        self._model: Any = None

    def attach(self, engine: Engine, model: Any = None) -> None:
        """Follow an engine.

        Args:
            engine: The engine that trains.
            model: The model, for a warning if it was built before the seeds were set.
        """
        self._model = model
        engine.add_event_handler(Events.STARTED, self._started)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(Events.COMPLETED, self._completed)

    def _started(self, engine: Engine) -> None:
        self._training.check("the engine", () if self._model is None else self._model.modules())
        if self._resumed is not None:
            # Objects made since it was loaded may have drawn.
            self._training.restore(self._resumed)
            self._resumed = None
        self._training.begin_steps(engine.state.iteration)

    def _iteration_completed(self, engine: Engine) -> None:
        self._training.count_to(engine.state.iteration)

    def _completed(self, engine: Engine) -> None:
        self._training.end_steps()

    def state_dict(self) -> dict[str, Any]:
        """The state of the run, in a form that `torch.load` loads with `weights_only=True`."""
        return self._training.capture().to_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put the state back, now and again when the engine starts.

        Args:
            state_dict: A result of `state_dict`.

        Raises:
            StateError: The state does not fit here; nothing was put back.
        """
        self._resumed = from_dict(state_dict)
        self._training.restore(self._resumed)
