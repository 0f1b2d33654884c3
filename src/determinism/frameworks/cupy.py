"""CuPy's generators, one per device, and its arrays in the form that a saved state has.

CuPy makes the generator of a device when it first draws there, with the seed in the environment variable `CUPY_SEED`
(cupy/random/_generator.py, `get_random_state`). So devices that are not in use yet are seeded without being put into use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from determinism.seeds import Streams

_SEED_VARIABLE = "CUPY_SEED"


def seed(streams: Streams) -> None:
    """Seed the generators of all devices, those that are in use and those that come into use later.

    All devices of a process begin at the same seed, since there is one variable for them.
    """
    value = streams.integer("cupy", "default", bits=63)
    os.environ[_SEED_VARIABLE] = str(value)
    for device in _devices_in_use():
        with cupy.cuda.Device(device):
            cupy.random.seed(value)


def _devices_in_use() -> list[int]:
    generators = getattr(getattr(cupy.random, "_generator", None), "_random_states", None)
    if generators is None:
        # A version that keeps them elsewhere: at least the current device is seeded.
        return [int(cupy.cuda.Device().id)]
    return sorted(generators)


def capture() -> Callable[[], None]:
    """Note the seed for devices that come into use; the states of generators are given to nobody.

    Returns:
        What puts the seed back.
    """
    before = os.environ.get(_SEED_VARIABLE)

    def restore() -> None:
        if before is None:
            os.environ.pop(_SEED_VARIABLE, None)
        else:
            os.environ[_SEED_VARIABLE] = before

    return restore


def reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    """What seeds a `cupy.random.RandomState`; None if the thing is none.

    Args:
        thing: What was registered.
        name: Under which name.
    """
    if not isinstance(thing, cupy.random.RandomState):
        return None
    return lambda streams: thing.seed(streams.integer("cupy", "own", name, bits=63))


# What a saved state holds: arrays. The states of the generators are given to nobody.


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
    """A generator of CuPy's does not expose its state."""
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
        "CuPy does not expose the state of its generators: seed them again with cupy.random.seed(...), by a number "
        "that depends on the step, both when the program saves and when it resumes; or draw on the CPU"
    ]
