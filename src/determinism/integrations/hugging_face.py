"""A callback for the Trainer of Hugging Face Transformers: settings, seeds, steps, and the state of the run in every checkpoint."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch.utils.data import IterableDataset
from transformers.trainer_callback import ExportableState, TrainerCallback

from determinism.errors import StateError
from determinism.integrations.training import Training, TrainingLedger, warn
from determinism.session.enable import Settings
from determinism.state import from_bytes
from determinism.state.capturing import global_states, restore_global_states
from determinism.types import PrecisionName

_BATCHES = "batches_ahead"
"""The part of the state that says what is known of the batch that was fetched ahead."""


class DeterminismCallback(TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers has no annotations
    """Makes a training with the Trainer deterministic, counts its steps, and lets it resume bit-exactly.

    Settings are made and seeds given when it is made, so make it before the model; the Trainer itself seeds by
    `TrainingArguments(seed=...)` when it is made, which is after the model. In a recording, a step is what the Trainer counts in
    `global_step`. `trainer_state.json` of each checkpoint holds `determinism.state`.

    Example:
        callback = DeterminismCallback(seed=1)
        model = AutoModelForCausalLM.from_config(config)
        trainer = Trainer(model, TrainingArguments("out", full_determinism=True), train_dataset=texts, callbacks=[callback])
        trainer.train(resume_from_checkpoint=resume)
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
            seed: As for `determinism.enable`; None if `set_seed` was called before the model was built, or the Trainer builds it (`model_init`).
            warn_only: As for `determinism.enable`.
            threads: As for `determinism.enable`.
            precision: As for `determinism.enable`.
            allow: What may be different in a resumed run, as for `determinism.state.restore`.
            ledger: A [golden](goldens.md): it is written when a training ends, or compared with if it is there.
            update_ledger: Replace a golden that is there.
            **parts: What else belongs to the state: generators of the program's own, objects with `state_dict()` and `load_state_dict()`.

        Raises:
            TraceError: The golden is damaged, or no golden.
            UsageError: A part cannot take its state back, or there is no folder for the golden; nothing was set.
        """
        self._options = {"warn_only": warn_only, "threads": threads, "precision": precision, "allow": list(allow)}
        self._batches = BatchesAhead()
        self._training = Training(
            type(self).__name__,
            seed,
            warn_only=warn_only,
            threads=threads,
            precision=precision,
            allow=allow,
            ledger=ledger,
            update_ledger=update_ledger,
            parts={**parts, _BATCHES: self._batches},
        )
        self._has_checked = False
        self._is_alone = True
        self._is_stream = False
        self._has_warned = False

    @property
    def settings(self) -> Settings:
        """Each setting that was made, and what became of it, as `determinism.enable` gives it: `callback.settings.open` is what is left to do."""
        return self._training.settings

    @property
    def ledger(self) -> TrainingLedger | None:
        """What `ledger` asked for: its `comparison`, and `raise_if_different` for scripts that shall fail; None if nothing was asked for."""
        return self._training.ledger

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Tell what came too late, or was undone."""
        self._check(given.get("model"))

    def _check(self, model: Any) -> None:
        if not self._has_checked:
            self._has_checked = True
            self._training.check("TrainingArguments", () if model is None else model.modules())

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the state of the run that is resumed back."""
        self._check(given.get("model"))
        self._is_alone = args.world_size == 1
        self._is_stream = _is_stream(given.get("train_dataloader"))
        self._batches.watch(given.get("train_dataloader"))
        saved = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        saved = saved[0] if isinstance(saved, list) else saved
        text = (saved or {}).get("attributes", {}).get("saved")
        if text is not None and self._is_alone:
            self._training.restore(from_bytes(_bytes(text), "What trainer_state.json holds of determinism"))
        self._training.begin_steps(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the generators back as the batches left them: the Trainer puts them back as they were before it fetched the batches."""
        self._batches.first_step_begins()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A step ends."""
        self._training.count_to(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Tell once what a resumed run will lack."""
        if self._has_warned:
            return
        self._has_warned = True
        if not self._is_alone:
            warn("trainer-ranks-unsaved", ranks=args.world_size)
        elif self._is_stream:
            warn("trainer-stream")

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Leave the loader as it was; end counting."""
        self._batches.leave()
        self._training.end_steps()

    def state(self) -> dict[str, Any]:
        """What the Trainer writes into `trainer_state.json`; each rank would need its own, so with several there is nothing."""
        text = base64.b64encode(self._training.capture().to_bytes()).decode() if self._is_alone else None
        return {"args": self._options, "attributes": {"saved": text}}


def _is_stream(loader: Any) -> bool:
    """Whether a loader that the Trainer has prepared gives what an `IterableDataset` yields."""
    loader = getattr(loader, "base_dataloader", loader)
    return isinstance(getattr(loader, "dataset", None), IterableDataset)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise StateError(
            "state-unreadable",
            f"What trainer_state.json holds of determinism is damaged ({error}), so nothing was put back. Resume from another checkpoint, or "
            "without DeterminismCallback.",
        ) from None


class BatchesAhead:
    """Knows what the generators were before the batch that was fetched ahead.

    The Trainer fetches a batch more than it trains on, and a resumed one fetches that batch again. So if data set or collator draw from
    global generators, these must be as they were before that fetch, and then as they were when the checkpoint was saved.
    """

    def __init__(self) -> None:
        """Nothing is watched."""
        self._undo: Callable[[], None] = lambda: None
        self._number = 0
        self._before: dict[str, Any] | None = None
        self._after: dict[str, Any] | None = None
        self._resume: dict[str, Any] | None = None

    def watch(self, loader: Any) -> None:
        """Follow the batches of a loader that the Trainer has prepared, if this process fetches them itself.

        Args:
            loader: That of the training.
        """
        self.leave()
        loader = getattr(loader, "base_dataloader", loader)
        batches, collate = getattr(loader, "batch_sampler", None), getattr(loader, "collate_fn", None)
        if batches is None or collate is None or loader.num_workers:
            return

        def collated(samples: Any) -> Any:
            batch = collate(samples)
            if self._resume is not None:
                self._after = global_states()
            return batch

        # A loader refuses another batch sampler once it is made; this one gives the same batches.
        object.__setattr__(loader, "batch_sampler", WatchedBatches(batches, self._asked))
        loader.collate_fn = collated

        def undo() -> None:
            object.__setattr__(loader, "batch_sampler", batches)
            loader.collate_fn = collate

        self._undo = undo

    def leave(self) -> None:
        """Follow no loader any more."""
        self._undo()
        self._undo = lambda: None

    def _asked(self, number: int, is_over: bool) -> None:
        """A batch is about to be fetched, or there is none left; all before were fetched."""
        resume = self._resume
        if resume is not None and number == resume["number"]:
            restore_global_states(resume["before"])
        elif resume is not None and number == resume["number"] + 1:
            restore_global_states(resume["now"])
            # There may be no batch left that is fetched with them.
            self._after = resume["now"]
        self._number = number
        self._before = None if is_over else global_states()

    def first_step_begins(self) -> None:
        """The first step of a resumed run begins."""
        if self._resume is not None and self._after is not None:
            restore_global_states(self._after)
        self._resume = self._after = None

    def state_dict(self) -> dict[str, Any]:
        """The number of the batch that was fetched ahead, and the generators before and now; None before if there was no such batch."""
        return {"number": self._number, "before": self._before, "now": global_states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fetch that batch with the generators as they were.

        Args:
            state: What `state_dict` gave.
        """
        self._resume = state if state["before"] is not None else None


class WatchedBatches:
    """The batches of a batch sampler; says when one is asked for. Attributes are those of the sampler."""

    def __init__(self, batches: Any, asked: Callable[[int, bool], None]) -> None:
        """Take the sampler, and what is called with the number of each batch, and at the end."""
        self.batches = batches
        self.asked = asked

    def __iter__(self) -> Iterator[Any]:
        number = -1
        for number, batch in enumerate(self.batches):
            self.asked(number, False)
            yield batch
        self.asked(number + 1, True)

    def __len__(self) -> int:
        return len(self.batches)

    def __getattr__(self, name: str) -> Any:
        if name == "batches":
            raise AttributeError(name)
        return getattr(self.batches, name)
