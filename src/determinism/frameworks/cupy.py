"""CuPy's generators, one per device, and conversion of its arrays for saved states.

CuPy creates the generator of a device at its first draw there, with the seed in the environment variable `CUPY_SEED`
(cupy/random/_generator.py, `get_random_state`). So devices that are not in use yet are seeded without being initialised.
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
    """Seed the generators of all devices, those in use and those used later.

    All devices of a process start from the same seed, since they share one variable.
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
    """Save the seed for devices that are not in use yet; return a function that restores it. States of generators cannot be read."""
    before = os.environ.get(_SEED_VARIABLE)

    def restore() -> None:
        if before is None:
            os.environ.pop(_SEED_VARIABLE, None)
        else:
            os.environ[_SEED_VARIABLE] = before

    return restore


def reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    """A function that seeds a `cupy.random.RandomState` registered under a name; None if the thing is not one."""
    if not isinstance(thing, cupy.random.RandomState):
        return None
    return lambda streams: thing.seed(streams.integer("cupy", "own", name, bits=63))


# Saved states contain arrays. The states of the generators cannot be read.


def generator_states() -> dict[str, Any]:
    """Return an empty dictionary: cuRAND does not expose the states of its generators; see `gaps`."""
    return {}


def restore_generator_states(states: dict[str, Any]) -> None:
    """Restore nothing."""


def rank() -> tuple[int, int] | None:
    """Return None: CuPy does not know it."""
    return None


def devices() -> dict[str, int]:
    """Number of GPUs that CuPy sees."""
    try:
        found = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return {}
    return {"cupy GPU": found} if found else {}


def state_of(thing: Any) -> tuple[str, Any] | None:
    """Return None: CuPy's generators do not expose their state."""
    return None


def put_back(thing: Any, state: Any) -> None:
    """Restore nothing."""


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """A copy of an array on the CPU; None if `thing` is not one."""
    return (np.array(cupy.asnumpy(thing)), {}) if isinstance(thing, cupy.ndarray) else None


def from_array(array: np.ndarray[Any, Any], description: dict[str, Any]) -> Any:
    """The array that `to_array` converted to this array and description, on the current device."""
    return cupy.asarray(array)


def gaps() -> list[str]:
    """What a saved state lacks: the states of generators."""
    return [
        "CuPy does not expose the state of its generators: seed them again with cupy.random.seed(...), by a number "
        "that depends on the step, both when the program saves and when it resumes; or draw on the CPU"
    ]
