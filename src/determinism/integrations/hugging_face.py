"""A callback for the Trainer of Hugging Face Transformers: settings, seeds, steps, and the state of the run in every checkpoint."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch.utils.data import IterableDataset
from transformers.trainer_callback import ExportableState, TrainerCallback

from determinism.errors import StateError
from determinism.integrations.training import Training, TrainingCallback, warn
from determinism.state import from_bytes
from determinism.state.capturing import global_states, restore_global_states
from determinism.types import PrecisionName

_BATCHES = "batches_ahead"
"""The part of the state that describes the batch that was fetched ahead."""


class DeterminismCallback(TrainingCallback, TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers has no annotations
    """Makes a training with the Trainer deterministic, counts its steps, and lets it resume bit-exactly.

    Settings are applied and seeds set when it is created, so create it before the model; the Trainer itself seeds, with
    `TrainingArguments(seed=...)`, when it is created, which is after the model. In a recording, a step is what the Trainer
    counts in `global_step`. `trainer_state.json` of each checkpoint holds `determinism.state`.

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
        """Apply the settings, and set the seeds.

        Args:
            seed: As for `determinism.enable`; None if `set_seed` was called before the model was built, or the Trainer builds it (`model_init`).
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

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Warn of what came too late, or was undone."""
        self._check(given.get("model"))

    def _check(self, model: Any) -> None:
        if not self._has_checked:
            self._has_checked = True
            self._training.check("TrainingArguments", () if model is None else model.modules())

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put back the state of the run that is resumed."""
        self._check(given.get("model"))
        self._is_alone = args.world_size == 1
        self._is_stream = _is_stream(given.get("train_dataloader"))
        self._batches.watch(given.get("train_dataloader"))
        saved = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        saved = saved[0] if isinstance(saved, list) else saved
        text = (saved or {}).get("attributes", {}).get("saved")
        if text is not None and self._is_alone:
            self._training.restore(from_bytes(_bytes(text), "The determinism state in trainer_state.json"))
        self._training.begin_steps(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the generators back as the batches left them: the Trainer resets them to before it fetched the batches."""
        self._batches.first_step_begins()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Count the step that ended."""
        self._training.count_to(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Warn once of what a resumed run will lack."""
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
        """What the Trainer writes into `trainer_state.json`; with several ranks nothing, since each would need its own."""
        text = base64.b64encode(self._training.capture().to_bytes()).decode() if self._is_alone else None
        return {"args": self._options, "attributes": {"saved": text}}


def _is_stream(loader: Any) -> bool:
    """Whether a loader that the Trainer has prepared reads from an `IterableDataset`."""
    loader = getattr(loader, "base_dataloader", loader)
    return isinstance(getattr(loader, "dataset", None), IterableDataset)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise StateError(
            "state-unreadable",
            f"The determinism state in trainer_state.json is damaged ({error}), so nothing was put back. Resume from another checkpoint, or "
            "without DeterminismCallback.",
        ) from None


class BatchesAhead:
    """Knows the states of the generators before the batch that was fetched ahead.

    The Trainer fetches one batch more than it trains on, and a resumed one fetches that batch again. So if data set or collator
    draw from global generators, these must be as they were before that fetch, and then as when the checkpoint was saved.
    """

    def __init__(self) -> None:
        """Begin without a loader."""
        self._undo: Callable[[], None] = lambda: None
        self._number = 0
        self._before: dict[str, Any] | None = None
        self._after: dict[str, Any] | None = None
        self._resume: dict[str, Any] | None = None

    def watch(self, loader: Any) -> None:
        """Follow the batches of a loader that the Trainer has prepared, if this process fetches them itself."""
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

        # A loader refuses a different batch sampler once it is created; this one yields the same batches.
        object.__setattr__(loader, "batch_sampler", WatchedBatches(batches, self._asked))
        loader.collate_fn = collated

        def undo() -> None:
            object.__setattr__(loader, "batch_sampler", batches)
            loader.collate_fn = collate

        self._undo = undo

    def leave(self) -> None:
        """Stop following the loader."""
        self._undo()
        self._undo = lambda: None

    def _asked(self, number: int, is_over: bool) -> None:
        """Note that a batch is about to be fetched, or that none is left; all earlier ones were fetched."""
        resume = self._resume
        if resume is not None and number == resume["number"]:
            restore_global_states(resume["before"])
        elif resume is not None and number == resume["number"] + 1:
            restore_global_states(resume["now"])
            # There may be no batch left to fetch with them.
            self._after = resume["now"]
        self._number = number
        self._before = None if is_over else global_states()

    def first_step_begins(self) -> None:
        """Put the generators back at the first step of a resumed run."""
        if self._resume is not None and self._after is not None:
            restore_global_states(self._after)
        self._resume = self._after = None

    def state_dict(self) -> dict[str, Any]:
        """The number of the batch that was fetched ahead, and the generators before it, None if there was none, and now."""
        return {"number": self._number, "before": self._before, "now": global_states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fetch that batch with the generators as they were.

        Args:
            state: A result of `state_dict`.
        """
        self._resume = state if state["before"] is not None else None


class WatchedBatches:
    """The batches of a batch sampler; reports when one is requested. Other attributes are those of the sampler."""

    def __init__(self, batches: Any, asked: Callable[[int, bool], None]) -> None:
        """Take the sampler, and the function to call with the number of each batch, and at the end."""
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
