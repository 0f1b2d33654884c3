"""CuPy's arrays in the form that a saved state has. The states of its generators are given to nobody."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np


def generator_states() -> dict[str, Any]:
    """Nothing: cuRAND keeps the states of its generators to itself; see `gaps`."""
    return {}


def restore_generator_states(states: dict[str, Any]) -> None:
    """Put nothing back."""


def rank() -> tuple[int, int] | None:
    """Not known to CuPy."""
    return None


def devices() -> dict[str, int]:
    """How many GPUs CuPy sees."""
    try:
        found = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return {}
    return {"cupy GPU": found} if found else {}


def state_of(thing: Any) -> tuple[str, Any] | None:
    """A generator of CuPy's gives nobody its state."""
    return None


def put_back(thing: Any, state: Any) -> None:
    """Nothing can be put back."""


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """A copy of an array on the CPU; None if `thing` is none."""
    return (np.array(cupy.asnumpy(thing)), {}) if isinstance(thing, cupy.ndarray) else None


def from_array(array: np.ndarray[Any, Any], description: dict[str, Any]) -> Any:
    """The array, on the current device.

    Args:
        array: What `to_array` gave.
        description: What came with it.
    """
    return cupy.asarray(array)


def gaps() -> list[str]:
    """What generators have drawn."""
    return [
        "CuPy's generators give nobody their state: seed them anew where the program saves and where it goes on, with "
        "cupy.random.seed(...) and a number that depends on the step, or draw on the CPU"
    ]
