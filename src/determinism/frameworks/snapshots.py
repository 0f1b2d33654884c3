"""What `determinism.check(fn)` copies of an object and puts back, and what an adapter offers for the objects of its framework."""

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
    """When contents are put back: what is hashed needs its attributes first, those may need their memory."""

    MEMORY = 0
    ATTRIBUTES = 1
    HASHED = 2


def _leave() -> None:
    return


@dataclass(frozen=True, slots=True)
class Contents:
    """The copied contents of one object."""

    restore: Callable[[], object] = _leave
    """Puts them back into the same object; by default there is nothing to put back."""
    children: Iterable[tuple[object, object]] = ()
    """The objects held, each with its key; gone through once."""
    template: str = ".{}"
    """How an error names a child, given its key."""
    order: Order = Order.MEMORY
    is_whole: bool = False
    """Whether nothing else of the object is the program's state, so that its attributes are left alone."""
    are_attributes: bool = False
    """Whether this is the `__dict__` of the object."""


class FrameworkState(Protocol):
    """What the module of `STATES` offers for a framework of `SNAPSHOTS`."""

    def contents_of(self, thing: Any) -> Sequence[Contents] | None:
        """The contents of a tensor or another object of the framework's own; None if `thing` is none."""

    def capture_generators(self) -> Any:
        """Copy the states of the framework's global generators."""

    def restore_generators(self, states: Any) -> None:
        """Put them back; None stands for a framework that was not loaded when the others were copied."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """Copy and put back without the framework recording it."""


def loaded_frameworks() -> dict[str, FrameworkState]:
    """The snapshot modules of loaded frameworks, by the framework's name; none is imported for it."""
    return {
        name: cast(FrameworkState, importlib.import_module(STATES[name])) for name in SNAPSHOTS if name in sys.modules
    }
