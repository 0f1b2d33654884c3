"""The contents of objects that `determinism.check(fn)` copies and restores, and an adapter's interface for its framework's objects."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, cast

from determinism.frameworks.registry import SNAPSHOTS, STATES


class Order(IntEnum):
    """When contents are restored: hashed objects need their attributes first, which may need their memory."""

    MEMORY = 0
    ATTRIBUTES = 1
    HASHED = 2


def _leave() -> None:
    return


@dataclass(frozen=True, slots=True)
class Contents:
    """The copied contents of one object."""

    restore: Callable[[], object] = _leave
    """Restores them in the same object; by default there is nothing to restore."""
    children: Iterable[tuple[object, object]] = ()
    """The objects held, each with its key; iterated once."""
    template: str = ".{}"
    """How an error names a child, given its key."""
    order: Order = Order.MEMORY
    is_whole: bool = False
    """Whether nothing else in the object is the program's state, so that its attributes are left alone."""
    are_attributes: bool = False
    """Whether this is the `__dict__` of the object."""


class FrameworkState(Protocol):
    """The interface of a module in `STATES` for a framework in `SNAPSHOTS`."""

    def contents_of(self, thing: Any) -> Sequence[Contents] | None:
        """The contents of a tensor or another of the framework's own objects; None if `thing` is not one."""

    def capture_generators(self) -> Any:
        """Copy the states of the framework's global generators."""

    def restore_generators(self, states: Any) -> None:
        """Restore the copied states; None means that the framework was not loaded when the others were copied."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """Keep the framework from recording that states are copied and restored."""


def loaded_frameworks() -> dict[str, FrameworkState]:
    """The snapshot modules of loaded frameworks, by the framework's name; does not import a framework."""
    return {
        name: cast(FrameworkState, importlib.import_module(STATES[name])) for name in SNAPSHOTS if name in sys.modules
    }
