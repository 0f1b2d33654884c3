"""The states of all generators that are loaded, as plain values, arrays and tensors."""

from __future__ import annotations

import random
import sys
from importlib import import_module
from typing import Any

from determinism.frameworks.registry import GENERATOR_STATES
from determinism.seeds.process_generators import numpy_random
from determinism.session import seeding
from determinism.settings.surroundings import is_loaded


def states() -> dict[str, Any]:
    """The states of Python's, NumPy's, the frameworks' and the registered generators, and the place of the seeds."""
    found: dict[str, Any] = {"python": random.getstate()}
    numpy = numpy_random()
    if numpy is not None:
        found["numpy"] = numpy.get_state(legacy=False)
    for framework, module in GENERATOR_STATES.items():
        if is_loaded(framework):
            found[framework] = import_module(module).states()
    seeds = seeding.active_seeds()
    found["seeds"] = None if seeds is None else seeds.state_dict()
    registered = {name: state_of(thing) for name, thing in seeding.registered_generators().things().items()}
    found["registered"] = {name: state for name, state in registered.items() if state is not None}
    return found


def set_states(saved: dict[str, Any]) -> None:
    """Put all generators into saved states; they must fit.

    Args:
        saved: What `states` gave.
    """
    seeds = seeding.active_seeds()
    if saved["seeds"] is not None and seeds is not None:
        # First: it seeds everything, and what follows says where the streams had come to.
        seeds.load_state_dict(saved["seeds"])
    for framework, module in GENERATOR_STATES.items():
        if framework in saved and is_loaded(framework):
            import_module(module).set_states(saved[framework])
    things = seeding.registered_generators().things()
    for name, state in saved["registered"].items():
        set_state_of(things[name], state)
    numpy = numpy_random()
    if numpy is not None and "numpy" in saved:
        numpy.set_state(saved["numpy"])
    random.setstate(saved["python"])


def state_of(thing: Any) -> Any:
    """The state of a generator; None for a function, which has none that could be read."""
    if isinstance(thing, random.Random):
        return thing.getstate()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(thing, numpy.RandomState):
        return thing.get_state(legacy=False)
    if numpy is not None and isinstance(thing, numpy.Generator):
        return thing.bit_generator.state
    for framework, module in GENERATOR_STATES.items():
        if is_loaded(framework):
            state = import_module(module).state_of(thing)
            if state is not None:
                return state
    return None


def set_state_of(thing: Any, state: Any) -> None:
    """Put a generator into a state that `state_of` gave.

    Args:
        thing: The generator.
        state: Its state.
    """
    numpy = sys.modules.get("numpy.random")
    if isinstance(thing, random.Random):
        thing.setstate(state)
    elif numpy is not None and isinstance(thing, numpy.RandomState):
        thing.set_state(state)
    elif numpy is not None and isinstance(thing, numpy.Generator):
        thing.bit_generator.state = state
    else:
        for framework, module in GENERATOR_STATES.items():
            if is_loaded(framework) and import_module(module).state_of(thing) is not None:
                import_module(module).set_state_of(thing, state)
