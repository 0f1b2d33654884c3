"""Adds the state of a run to what Accelerate saves: `accelerator.save_state` and `load_state` then resume bit-exactly."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from accelerate.data_loader import SeedableRandomSampler

from determinism.errors import UsageError
from determinism.integrations.training import ledger
from determinism.state import Checkpointed, ResumableLoader
from determinism.state.loader import portable

__all__ = ["LoaderAhead", "PreparedPosition", "ledger", "register"]


def register(accelerator: Any, *, allow: Collection[str] = (), **parts: Any) -> Checkpointed:
    """Let an accelerator save and load the state of the run along with models and optimizers.

    Call it after `accelerator.prepare`. Prepared loaders then report their position, and continue from there after
    `load_state`: the loop over them is the same whether the run begins or resumes. Without this, Accelerate restarts the epoch,
    and loses the generator that shuffles. Call `determinism.enable(seed=1)` before the model is built.

    Args:
        accelerator: The `accelerate.Accelerator`.
        allow: What may differ in a resumed run, as for `determinism.state.restore`.
        **parts: By names of your choice, what belongs to the state in addition to what the accelerator itself saves: prepared
            loaders, generators, and plain values, such as the number of the epoch.

    Returns:
        The object that is saved. Change plain values through its `values`, and read them there after `load_state`.

    Raises:
        UsageError: Several processes train together; Accelerate would save the state of only one.

    Example:
        run = register(accelerator, loader=loader, epoch=0)
        if resume:
            accelerator.load_state("checkpoint")
        for run.values["epoch"] in range(run.values["epoch"], 3):
            for batch in loader:
                ...
            accelerator.save_state("checkpoint")
    """
    if accelerator.num_processes > 1:
        raise UsageError(
            "accelerate-ranks",
            f"{accelerator.num_processes} processes train together, and Accelerate saves registered objects only in the main one, so nothing was "
            "registered: each needs its own state. Save it next to the checkpoint in each: "
            'determinism.state.capture(...).save(f"checkpoint/rank-{accelerator.process_index}.state").',
        )
    positions = {
        name: PreparedPosition(part)
        for name, part in parts.items()
        if hasattr(part, "base_dataloader") and hasattr(part, "iteration")
    }
    state = Checkpointed(allow=allow, **{**parts, **positions})
    accelerator.register_for_checkpointing(state)
    return state


class PreparedPosition:
    """The position of a loader that Accelerate has prepared.

    Such a loader fetches a batch ahead, so the loader within it is one batch further than the loop.
    """

    def __init__(self, prepared: Any) -> None:
        """Take the loader, and replace the one within it by one that can continue from a position.

        Args:
            prepared: What `accelerator.prepare` made from a `DataLoader`.
        """
        self._prepared = prepared
        if not isinstance(prepared.base_dataloader, LoaderAhead):
            prepared.base_dataloader = LoaderAhead(prepared)
        self._loader: LoaderAhead = prepared.base_dataloader

    def state_dict(self) -> dict[str, Any]:
        """The position of the loop, and the current states of the generators."""
        return {"iteration": self._prepared.iteration, **self._loader.position()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position the next time the loader is iterated over.

        Args:
            state: A result of `state_dict`.
        """
        self._prepared.iteration = state["iteration"]
        self._loader.load_state_dict(state)

    def determinism_misfits(self, state: dict[str, Any]) -> list[str]:
        """The reasons why a saved position would not lead to the same batches here."""
        return self._loader.determinism_misfits(state)


class LoaderAhead(ResumableLoader):
    """A loader whose user fetches a batch ahead of the loop.

    Accelerate calls its `state_dict` before it fetches the next batch, which is the position of the loop; only the generators
    have since moved, by the draws of the loop.
    """

    def __init__(self, prepared: Any) -> None:
        """Take the place of the loader within a prepared one."""
        super().__init__(prepared.base_dataloader)
        self._prepared = prepared
        self._iteration = -1
        self._looked: tuple[Any, int, Any] = (None, 0, None)
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        resume, self._is_over = self._resume, False
        self._iteration = self._prepared.iteration
        then, here = (None, {}) if resume is None else (resume["then"], self._states())
        if resume is not None and resume["is_over"]:
            # The loop had all batches of this epoch, and Accelerate does not count an epoch without any.
            self._prepared.iteration += 1
        for batch in super().__iter__():
            yield batch
            if then is not None:
                self._go_on(then, here)
                then = None
        if then is not None:
            self._go_on(then, here)
        self._is_over = True

    def _own_generators(self) -> list[Any]:
        # Accelerate seeds the generator of such a sampler with the epoch at each iteration, and creates it only then.
        seeded = [sampler.generator for sampler in self._samplers() if isinstance(sampler, SeedableRandomSampler)]
        return [one for one in super()._own_generators() if all(one is not other for other in seeded)]

    def state_dict(self) -> dict[str, Any]:
        """Note the position of the loop; Accelerate keeps the returned dictionary, and adds to it."""
        if self._began is not None:
            self._looked = (self._began, self._yielded, self._states())
        return {}

    def position(self) -> dict[str, Any]:
        """The position of the loop, as it is saved."""
        if self._resume is not None:
            return self._resume
        here = self._states()
        began, yielded, now = self._looked
        # The loop may still be at the last batch when the loader has seen that there is no further one.
        if self._prepared.iteration != self._iteration or (self._began is None and not self._is_over):
            began, yielded, now = None, 0, here
        return {
            "facts": self._facts(),
            "is_over": self._is_over,
            "yielded": yielded,
            "began": portable(began),
            "now": portable(now),
            "then": portable(here),
        }
