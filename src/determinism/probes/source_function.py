"""A function that is a source, and what is done when it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from determinism.probes.use import Use

Function = Callable[..., Any]
Way = Callable[[Use, Function, tuple[Any, ...], dict[str, Any]], Any]
"""Calls a source function with arguments, notes what it gave, and gives it; or a fixed value, if that is asked for."""


@dataclass(frozen=True)
class SourceFunction:
    """A function that takes something from outside."""

    source: str
    """Identifier of the source."""
    module: str
    """The module that has the function."""
    name: str
    """Its name there; a method's with its class."""
    way: Way


def functions(source: str, way: Way, module: str, names: str) -> tuple[SourceFunction, ...]:
    """Functions of one module that are looked at in the same way.

    Args:
        source: Identifier of the source.
        way: What is done when one is called.
        module: The module.
        names: Their names, with spaces between them.
    """
    return tuple(SourceFunction(source, module, name, way) for name in names.split())
