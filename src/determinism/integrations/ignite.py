"""A handler for PyTorch Ignite: settings, seeds, iterations as steps, and the state of the run in what `Checkpoint` saves."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from ignite.engine import Engine, Events

from determinism.integrations.training import Training, TrainingLedger
from determinism.session.enable import Settings
from determinism.state import State, from_dict
from determinism.types import PrecisionName


class DeterminismHandler:
    """Makes a training with Ignite deterministic, counts its iterations as steps, and lets it resume bit-exactly.

    Settings are made and seeds given when it is made, so make it before the model. Give it the loader, wrapped by
    `determinism.state.resumable`, and put it among what `Checkpoint` saves and `Checkpoint.load_objects` loads.

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
        """Make the settings, and give the seeds.

        Args:
            seed: As for `determinism.enable`; None leaves it to `ignite.utils.manual_seed`.
            warn_only: As for `determinism.enable`.
            threads: As for `determinism.enable`.
            precision: As for `determinism.enable`.
            allow: What may be different in a resumed run, as for `determinism.state.restore`.
            ledger: A [golden](goldens.md): it is written when a training ends, or compared with if it is there.
            update_ledger: Replace a golden that is there.
            **parts: What belongs to the state: the loader, generators of the program's own, objects with `state_dict()` and `load_state_dict()`.

        Raises:
            TraceError: The golden is damaged, or no golden.
            UsageError: A part cannot take its state back, or there is no folder for the golden; nothing was set.
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

    @property
    def settings(self) -> Settings:
        """Each setting that was made, and what became of it, as `determinism.enable` gives it: `callback.settings.open` is what is left to do."""
        return self._training.settings

    @property
    def ledger(self) -> TrainingLedger | None:
        """What `ledger` asked for: its `comparison`, and `raise_if_different` for scripts that shall fail; None if nothing was asked for."""
        return self._training.ledger

    def attach(self, engine: Engine, model: Any = None) -> None:
        """Follow an engine.

        Args:
            engine: The one that trains.
            model: What it trains, to be told if it was built before the seeds were given.
        """
        self._model = model
        engine.add_event_handler(Events.STARTED, self._started)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(Events.COMPLETED, self._completed)

    def _started(self, engine: Engine) -> None:
        self._training.check("the engine", () if self._model is None else self._model.modules())
        if self._resumed is not None:
            # What was made since it was loaded may have drawn.
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
        """Put the state back, and once more when the engine starts.

        Args:
            state_dict: What `state_dict` gave.

        Raises:
            StateError: It does not fit here; nothing was put back.
        """
        self._resumed = from_dict(state_dict)
        self._training.restore(self._resumed)
