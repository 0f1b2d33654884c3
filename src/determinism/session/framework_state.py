"""The state files of the frameworks that the program has loaded."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from determinism.session.contents import Contents

_NAMES = ("torch", "tensorflow", "jax")


class FrameworkState(Protocol):
    """What a framework's `state` file offers."""

    def contents_of(self, thing: Any) -> Sequence[Contents] | None:
        """The contents of a tensor or another object of the framework's own; None if `thing` is none."""

    def capture_generators(self) -> Any:
        """Copy the states of the framework's global generators."""

    def restore_generators(self, states: Any) -> None:
        """Put them back; None stands for a framework that was not loaded when the others were copied."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """Copy and put back without the framework recording it."""


def loaded_frameworks() -> dict[str, FrameworkState]:
    """The state files of loaded frameworks, by the framework's name; none is imported for it."""
    states: dict[str, FrameworkState] = {}
    for name in _NAMES:
        file = f"determinism.frameworks.{name}.state"
        if name in sys.modules and _exists(file):
            states[name] = cast(FrameworkState, importlib.import_module(file))
    return states


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
