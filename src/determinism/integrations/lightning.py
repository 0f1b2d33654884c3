"""A callback for Lightning, under both its names: settings, seeds, steps, and the state of the run in every checkpoint."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from determinism.integrations.training import Training, TrainingCallback, warn
from determinism.session.seeding import active_seeds
from determinism.state import ResumableLoader, State, from_dict
from determinism.types import PrecisionName

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[Any, ...]:
    """The `Callback` of each package that the program has imported; else that of one that is installed."""
    imported = [name for name in _PACKAGES if name in sys.modules]
    installed = [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None]
    names = imported or installed[:1] or _PACKAGES[:1]
    return tuple(import_module(name).Callback for name in names)


class DeterminismCallback(TrainingCallback, *_bases()):  # type: ignore[misc]  # which package it is is known only here
    """Makes a training with Lightning deterministic, counts its steps, and lets it resume bit-exactly.

    Settings are applied and seeds set when it is created, so create it before the model. In a recording, a step is what the
    trainer counts in `global_step`. Each checkpoint holds `determinism.state`; with a loader that is
    `determinism.state.resumable`, a run also resumes in the middle of an epoch.

    Example:
        callback = DeterminismCallback(seed=1)
        model = Model()
        loader = determinism.state.resumable(DataLoader(images, batch_size=32, shuffle=True))
        trainer = Trainer(max_epochs=3, deterministic=True, callbacks=[callback])
        trainer.fit(model, loader, ckpt_path="last.ckpt" if resume else None)
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
            seed: As for `determinism.enable`; None leaves it to `seed_everything`.
            warn_only: As for `determinism.enable`.
            threads: As for `determinism.enable`.
            precision: As for `determinism.enable`.
            allow: What may differ in a resumed run, as for `determinism.state.restore`.
            ledger: A [golden](goldens.md): it is written when a training ends, or compared with if it exists.
            update_ledger: Replace an existing golden.
            **parts: Further parts of the state: the program's own generators, objects with `state_dict()` and `load_state_dict()`.

        Raises:
            TraceError: The file is damaged, or is not a golden.
            UsageError: The state of a part cannot be restored, or the golden's folder does not exist; nothing was set.
        """
        super().__init__()
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
        self._has_warned = False
        self._is_alone = True
        self._hook: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Warn of what came too late, or was undone; let each of several ranks draw its own numbers."""
        if stage != "fit":
            return
        self._training.check("Trainer(deterministic=...)", pl_module.modules())
        self._is_alone = trainer.world_size == 1
        if not self._is_alone:
            warn("trainer-ranks", ranks=trainer.world_size)
            # Lightning starts the other processes itself, and sets their rank after the callback is created.
            seeds = active_seeds()
            if seeds is not None and seeds.streams.rank != trainer.global_rank:
                seeds.begin(rank=trainer.global_rank)

    # What Lightning keeps in a checkpoint, and returns before the data are set up.

    def state_dict(self) -> dict[str, Any]:
        """The state of the run, in a form that `torch.load` loads with `weights_only=True`; nothing with several ranks."""
        return self._training.capture().to_dict() if self._is_alone else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until the training begins."""
        self._resumed = from_dict(state_dict)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Let loaders begin a new epoch if this one is over: Lightning continues with the next, unlike their position."""
        loaders = list(_train_loaders(trainer))
        if not getattr(trainer.fit_loop.epoch_loop.batch_progress, "is_last_batch", False):
            self._warn_of_restart(loaders)
            return
        states = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader", ())
        # Lightning has the states of the loaders that report their position, in their order.
        telling = [loader for loader in loaders if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")]
        for loader, state in zip(telling, states, strict=False):
            if isinstance(loader, ResumableLoader):
                state.update(began=None, yielded=0)

    def _warn_of_restart(self, loaders: list[Any]) -> None:
        unknown = [loader for loader in loaders if not hasattr(loader, "load_state_dict")]
        ahead = [loader for loader in loaders if isinstance(loader, ResumableLoader) and not has_length(loader)]
        if (unknown or ahead) and not self._has_warned:
            self._has_warned = True
            if unknown:
                warn("trainer-loader-restarts", loader=f"the {type(unknown[0]).__name__} of the training")
            else:
                warn("trainer-loader-ahead")

    # When generators are put back: later draws must be those of the run that was saved.

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the state back before the data are set up: a plain `DataLoader` draws there."""
        if self._resumed is not None:
            self._training.restore(self._resumed)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count the steps of the optimizers from here on."""
        if self._resumed is not None and all(isinstance(loader, ResumableLoader) for loader in _train_loaders(trainer)):
            # These have drawn nothing yet; setting up the trainer may have.
            self._training.restore(self._resumed)
        self._training.begin_steps(trainer.global_step)
        self._end_counting()
        # After the recorder's own hook, so that the optimizer's work belongs to the step.
        self._hook = register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs: self._stepped(trainer, optimizer)
        )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the next epoch as the saved run began it."""
        if self._resumed is not None and all(isinstance(loader, ResumableLoader) for loader in _train_loaders(trainer)):
            self._training.restore(self._resumed)
        self._resumed = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Forget the state: once training runs, it must not be put back again."""
        self._resumed = None

    # Steps.

    def _stepped(self, trainer: Any, optimizer: torch.optim.Optimizer) -> None:
        if any(optimizer is one for one in trainer.optimizers):
            self._training.count_step()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the steps that a gradient scaler skipped; Lightning counts them too."""
        self._training.count_to(trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End counting."""
        self._end_counting()
        self._training.end_steps()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End counting."""
        self._end_counting()
        self._training.end_steps(is_complete=False)

    def _end_counting(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def has_length(loader: Any) -> bool:
    """Whether a loader knows how many batches it has; if not, Lightning fetches one ahead to see whether there is one."""
    try:
        len(loader)
    except (TypeError, NotImplementedError):
        return False
    return True


def _train_loaders(trainer: Any) -> Iterator[Any]:
    """The loaders of the training, also those within lists and dictionaries."""
    waiting = [trainer.train_dataloader]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one
        elif one is not None:
            yield one
