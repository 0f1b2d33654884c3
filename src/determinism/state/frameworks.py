"""What the adapters of the frameworks offer for saving state, for those that the program has loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol, cast

from numpy import ndarray

from determinism.errors import StateError
from determinism.frameworks.registry import STATE_KEEPERS


class StateKeeper(Protocol):
    """A framework's module `saved_state`."""

    def generator_states(self) -> dict[str, Any]:
        """The states of the global generators, as nested values and tensors."""

    def restore_generator_states(self, states: dict[str, Any]) -> None:
        """Put them back."""

    def rank(self) -> tuple[int, int] | None:
        """Number of this process among those that compute together, and how many there are; None if it computes alone."""

    def devices(self) -> dict[str, int]:
        """How many devices there are of each kind that has generators."""

    def state_of(self, thing: Any) -> tuple[str, Any] | None:
        """Kind and state of a generator of the framework's own; None if `thing` is none."""

    def put_back(self, thing: Any, state: Any) -> None:
        """Give a generator of that kind a state."""

    def to_array(self, thing: Any) -> tuple[ndarray[Any, Any], dict[str, Any]] | None:
        """A copy of a tensor as an array, and what makes it a tensor again; None if `thing` is none."""

    def from_array(self, array: ndarray[Any, Any], description: dict[str, Any]) -> Any:
        """The tensor, on the CPU."""

    def gaps(self) -> list[str]:
        """State that the framework does not give out."""


def loaded_keepers() -> Iterator[tuple[str, StateKeeper]]:
    """Those of the frameworks that the program has loaded, by name; none is imported for it."""
    for name, module in STATE_KEEPERS.items():
        if name in sys.modules:
            yield name, cast(StateKeeper, import_module(module))


def keeper(name: str) -> StateKeeper:
    """That of one framework, which is imported if it is not yet.

    Args:
        name: Of the framework, as a state names it.

    Raises:
        StateError: It is not installed, or unknown.
    """
    try:
        return cast(StateKeeper, import_module(STATE_KEEPERS[name]))
    except (ImportError, KeyError):
        raise StateError(
            "state-unfit",
            f"The state holds tensors of {name}, which cannot be imported here, so nothing was put back. Install {name}.",
        ) from None
