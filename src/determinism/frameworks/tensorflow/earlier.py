"""What a program made before it was recorded: functions that were traced, and optimizers that step in them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

_KERAS_OPTIMIZERS = "keras.src.optimizers.base_optimizer"


def earlier_functions() -> Iterator[tuple[str, Any]]:
    """Name and graph of each function that was traced."""
    for thing in gc.get_objects():
        if type(thing) is AtomicFunction and thing._cached_graph is not None:
            yield thing.name.decode(), thing._cached_graph


def earlier_optimizers() -> list[Any]:
    """The Keras optimizers there are; in no order that means anything."""
    module = sys.modules.get(_KERAS_OPTIMIZERS)
    kind = getattr(module, "BaseOptimizer", None)
    if kind is None:
        return []
    return [thing for thing in gc.get_objects() if isinstance(type(thing), type) and issubclass(type(thing), kind)]


def counts_steps_of(graph: Any, optimizer: Any) -> bool:
    """Whether a function steps an optimizer: it is given what the optimizer counts its steps with.

    Args:
        graph: Of the function.
        optimizer: Of Keras.
    """
    counter = getattr(getattr(optimizer, "iterations", None), "value", None)
    handle = getattr(counter, "handle", None)
    return handle is not None and any(external is handle for external, _ in graph.captures)
