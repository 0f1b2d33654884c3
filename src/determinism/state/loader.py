"""A data loader that can continue in the middle of an epoch with the next batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from determinism.digest import digest_bytes
from determinism.errors import StateError
from determinism.session.seeding import registered_generators
from determinism.state.captured import Encoder
from determinism.state.capturing import global_states, put_back, registered_states, restore_global_states, state_of

_END = object()
_ARRAY = frozenset(("dtype", "numbers"))
_gone_on: set[str] = set()
"""The moments from which a loader has continued, as digests of the generators."""


def _digest(states: Any) -> str:
    """Return the digest of the states of generators."""
    encoder = Encoder()
    document = json.dumps(encoder.encode(states, "generators"), sort_keys=True)
    return digest_bytes(document.encode() + b"".join(array.tobytes() for array in encoder.arrays.values())).hex()


def portable(value: Any) -> Any:
    """Replace arrays by lists: trainers save this state for `torch.load(weights_only=True)`, which refuses arrays."""
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "numbers": value.tolist()}
    if isinstance(value, dict):
        return {key: portable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(portable(one) for one in value)
    return value


def plain(value: Any) -> Any:
    """Undo `portable`."""
    if isinstance(value, dict):
        if value.keys() == _ARRAY:
            return np.array(value["numbers"], dtype=value["dtype"])
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(one) for one in value)
    return value


def resumable(loader: Any) -> ResumableLoader:
    """Make a data loader keep its position, and continue from there.

    Args:
        loader: A `torch.utils.data.DataLoader`, or any other object that can be iterated over repeatedly.

    Raises:
        StateError: Its workers outlive the epoch, so their states cannot be restored.

    Returns:
        The loader, with `state_dict` and `load_state_dict`.

    Example:
        >>> import torch
        >>> loader = determinism.state.resumable(torch.utils.data.DataLoader(range(6), batch_size=2))
        >>> len(list(loader))
        3
    """
    return ResumableLoader(loader)


class ResumableLoader:
    """Yields the batches of a data loader and keeps its position, so that it can continue in the middle of an epoch.

    To continue, it starts the epoch again with the generators' states from its beginning, skips the consumed batches,
    and restores the generators to their states at the time of capture. So samplers, workers and augmentations draw the
    same numbers as without the stop, and consumed batches are loaded again. Attributes are those of the loader.
    """

    def __init__(self, loader: Any) -> None:
        """Take the loader; `resumable` does the same."""
        if getattr(loader, "persistent_workers", False):
            raise StateError(
                "state-loader-persistent",
                "The loader has persistent_workers=True: its workers keep drawing from one epoch to the next, so a resumed run, whose "
                "workers are new, would get different random numbers. Create it with persistent_workers=False.",
            )
        self.loader = loader
        self._yielded = 0
        self._began: dict[str, Any] | None = None
        self._resume: dict[str, Any] | None = None
        self._epoch_in_progress: object = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        # Nothing is drawn and no worker is started before the first batch: trainers create iterators long before that.
        self._epoch_in_progress = this_epoch = object()
        try:
            for batch in self._batches():
                self._yielded += 1
                yield batch
        finally:
            if self._epoch_in_progress is this_epoch:
                self._began, self._yielded = None, 0

    def _batches(self) -> Iterator[Any]:
        """Return an iterator over the remaining batches of an epoch."""
        resume, self._resume = self._resume, None
        if resume is None:
            self._began, self._yielded = self._states(), 0
            return iter(self.loader)
        began, here = plain(resume["began"]), self._states()
        self._put_back(began)
        iterator: Iterator[Any] = iter(self.loader)
        for number in range(resume["yielded"]):
            if next(iterator, _END) is _END:
                raise StateError(
                    "state-loader-shorter",
                    f"The saved run had consumed {resume['yielded']} batches of the epoch, but the loader yields only {number}. Use "
                    "the data set and batch size of that run.",
                )
        self._began, self._yielded = began, resume["yielded"]
        self._go_on(resume["now"], here)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches of the epoch were consumed, and the states of generators at its beginning and now."""
        if self._resume is not None:
            return self._resume
        return {
            "facts": self._facts(),
            "yielded": self._yielded,
            "began": portable(self._began),
            "now": portable(self._states()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position the next time the loader is iterated over.

        Args:
            state: The result of `state_dict`.
        """
        self._put_back_own(plain(state["now"]))
        self._resume = state if state["began"] is not None else None
        _gone_on.difference_update(_digest(state[moment]["global"]) for moment in ("now", "then") if moment in state)

    def determinism_misfits(self, state: dict[str, Any]) -> list[str]:
        """Return, in words, why a saved position would not give the same batches here."""
        here = self._facts()
        return [
            f"{name} was {value}, but is {here[name]} here"
            for name, value in state["facts"].items()
            if here[name] != value
        ]

    def _facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: getattr(self.loader, name, None)
            for name in ("batch_size", "drop_last", "num_workers", "prefetch_factor")
        }
        try:
            found["samples"] = len(self.loader.dataset)
        except (AttributeError, TypeError, NotImplementedError):
            found["samples"] = None
        found["generators"] = [kind for kind, _ in self._own_states()]
        return found

    def _samplers(self) -> list[Any]:
        batches = getattr(self.loader, "batch_sampler", None)
        found = [getattr(self.loader, "sampler", None), batches, getattr(batches, "sampler", None)]
        return [
            one
            for index, one in enumerate(found)
            if one is not None and all(one is not other for other in found[:index])
        ]

    def _own_generators(self) -> list[Any]:
        """Return the loader's and its samplers' own generators, each once."""
        found: list[Any] = []
        for owner in (self.loader, *self._samplers()):
            generator = getattr(owner, "generator", None)
            if (
                generator is not None
                and all(generator is not other for other in found)
                and state_of(generator) is not None
            ):
                found.append(generator)
        return found

    def _own_states(self) -> list[tuple[str, Any]]:
        states = [state_of(generator) for generator in self._own_generators()]
        return [state for state in states if state is not None]

    def _states(self) -> dict[str, Any]:
        return {
            "global": global_states(),
            "own": [state for _, state in self._own_states()],
            "registered": {name: state for name, (_, state) in registered_states()[0].items()},
            "epochs": [getattr(sampler, "epoch", None) for sampler in self._samplers()],
        }

    def _go_on(self, saved: dict[str, Any], here: dict[str, Any]) -> None:
        """Restore the saved generators; draws of another loader that has continued from the same moment are kept.

        Args:
            saved: The saved states.
            here: The states before this loader skipped the consumed batches.
        """
        moment, states = _digest(saved["global"]), plain(saved)
        self._put_back(here if moment in _gone_on else states)
        self._put_back_own(states)
        _gone_on.add(moment)

    def _put_back(self, states: dict[str, Any]) -> None:
        restore_global_states(states["global"])
        things = registered_generators().things()
        for name, state in states.get("registered", {}).items():
            if name in things:
                put_back(things[name], state)
        self._put_back_own(states)

    def _put_back_own(self, states: dict[str, Any]) -> None:
        for generator, state in zip(self._own_generators(), states["own"], strict=True):
            put_back(generator, state)
        for sampler, epoch in zip(self._samplers(), states["epochs"], strict=True):
            if epoch is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
