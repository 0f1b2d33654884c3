"""The states of random generators: the global ones, those that were registered, and single ones."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from determinism import rng
from determinism.session.seeding import registered_generators
from determinism.state.frameworks import keeper, loaded_keepers


def global_states() -> dict[str, Any]:
    """The states of the global generators of Python, NumPy and every loaded framework, on all devices."""
    states = rng.capture()
    found: dict[str, Any] = {"python": _python_state(states.python), "numpy": states.numpy}
    found.update((name, adapter.generator_states()) for name, adapter in loaded_keepers())
    return found


def restore_global_states(states: dict[str, Any]) -> None:
    """Put them back; the frameworks among them are imported if they are not yet."""
    frameworks = [name for name in states if name not in ("python", "numpy")]
    if states["numpy"] is not None:
        # Without it the generator that the state belongs to does not exist.
        import numpy.random  # noqa: F401
    for name in frameworks:
        keeper(name).restore_generator_states(states[name])
    rng.restore(rng.GeneratorStates(_python_tuple(states["python"]), states["numpy"]))


def registered_states() -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """Kind and state of each registered generator by its name, and the names of those whose state cannot be read."""
    states: dict[str, tuple[str, Any]] = {}
    unreadable = []
    for name, thing in registered_generators().things().items():
        found = state_of(thing)
        if found is None:
            unreadable.append(name)
        else:
            states[name] = found
    return states, unreadable


def state_of(thing: Any) -> tuple[str, Any] | None:
    """Kind and state of a generator; None if `thing` is none, or gives its state to nobody.

    Args:
        thing: Any object.
    """
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return "random.Random", _python_state(thing.getstate())
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        if isinstance(thing, numpy.RandomState):
            state = thing.get_state(legacy=False)
            return f"numpy.random.RandomState of {state['bit_generator']}", state
        bits = thing.bit_generator if isinstance(thing, numpy.Generator) else thing
        if isinstance(bits, numpy.BitGenerator):
            return f"numpy.random.Generator of {type(bits).__name__}", bits.state
    for _, adapter in loaded_keepers():
        found = adapter.state_of(thing)
        if found is not None:
            return found
    return None


def put_back(thing: Any, state: Any) -> None:
    """Give a generator the state that one of the same kind had."""
    numpy = sys.modules.get("numpy.random")
    if isinstance(thing, random.Random):
        thing.setstate(_python_tuple(state))
    elif numpy is not None and isinstance(thing, numpy.RandomState):
        thing.set_state(state)
    elif numpy is not None and isinstance(thing, numpy.Generator):
        thing.bit_generator.state = state
    elif numpy is not None and isinstance(thing, numpy.BitGenerator):
        thing.state = state
    else:
        for _, adapter in loaded_keepers():
            if adapter.state_of(thing) is not None:
                adapter.put_back(thing, state)


def _python_state(state: tuple[Any, ...]) -> dict[str, Any]:
    version, words, gauss = state
    return {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss}


def _python_tuple(state: dict[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(state["words"].tolist()), state["gauss"]
