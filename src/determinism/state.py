"""What a resumed run needs: the states of all generators, the place in the training, and the states of your objects.

state = determinism.state.capture(epoch=3, step=1200, model=model, optimizer=optimizer)
determinism.state.save(state, "last.state")
place = determinism.state.restore(determinism.state.load("last.state"), model=model, optimizer=optimizer)
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from determinism.errors import StateError
from determinism.frameworks.registry import GENERATOR_STATES
from determinism.session import generator_states, state_file
from determinism.session.child_seeding import rank_of_environment
from determinism.session.seeding import registered_generators
from determinism.settings.surroundings import is_loaded, version_of

_RANKS_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def capture(*, epoch: int | None = None, step: int | None = None, **objects: Any) -> dict[str, Any]:
    """Copy the states of all generators of this process, and of objects.

    Args:
        epoch: Number of the epoch, for you to go on at.
        step: Number of the step, likewise.
        **objects: Whatever has `state_dict()`: model, optimizer, scheduler, gradient scaler, sampler.

    Returns:
        The state: dictionaries and lists of numbers, texts, arrays and tensors.

    Raises:
        StateError: An object has no `state_dict()`.
    """
    from copy import deepcopy

    states = {}
    for name, thing in objects.items():
        if not callable(getattr(thing, "state_dict", None)):
            raise StateError(
                "state-missing",
                f"{name} is a {type(thing).__qualname__}, which has no state_dict(), so nothing was captured. Give objects that "
                "have one.",
            )
        states[name] = thing.state_dict()
    return deepcopy(
        {
            "made with": _surroundings(),
            "place": {"epoch": epoch, "step": step},
            "generators": generator_states.states(),
            "objects": states,
        }
    )


def restore(state: dict[str, Any], *, ignore: tuple[str, ...] = (), **objects: Any) -> dict[str, int | None]:
    """Put the generators of this process, and objects, into a captured state. Either all of it fits, or nothing is changed.

    Args:
        state: What `capture` or `load` gave.
        ignore: What need not fit: "versions", "rank", "ranks", "devices".
        **objects: The objects, by the names that they were captured under.

    Returns:
        The place: `epoch` and `step`, as they were given to `capture`.

    Raises:
        StateError: The state does not fit this process.
    """
    misfits = [*_misfits(state["made with"], _surroundings(), ignore), *_missing(state, objects)]
    if misfits:
        raise StateError(
            "state-unfit",
            f"The state does not fit this process, so nothing was restored: {'; '.join(misfits)}. Restore it where it was made, "
            "or give ignore= what need not fit.",
        )
    for name, thing in objects.items():
        thing.load_state_dict(state["objects"][name])
    # Last: loading a state may draw random numbers.
    generator_states.set_states(state["generators"])
    return {"epoch": state["place"]["epoch"], "step": state["place"]["step"]}


def save(state: dict[str, Any], path: str | Path) -> None:
    """Write a state as one safetensors file, whole or not at all. Each rank writes a file of its own.

    Args:
        state: What `capture` gave.
        path: The file.

    Raises:
        StateError: It holds something else than numbers, texts, arrays and tensors.
        OSError: It cannot be written.
    """
    state_file.write(Path(path), state)


def load(path: str | Path) -> dict[str, Any]:
    """Read a state; nothing in the file is executed. Tensors are on the CPU.

    Args:
        path: The file.

    Raises:
        StateError: It is no state, or one of another version.
        OSError: It cannot be read.
    """
    return state_file.read(Path(path))


def _surroundings() -> dict[str, Any]:
    """What a state must fit."""
    loaded = [name for name in GENERATOR_STATES if is_loaded(name)]
    devices = {name: import_module(GENERATOR_STATES[name]).device_counts() for name in loaded}
    ranks = next((os.environ[name] for name in _RANKS_VARIABLES if name in os.environ), "1")
    return {
        "versions": {name: version_of(name) for name in loaded},
        "rank": rank_of_environment() or 0,
        "ranks": ranks,
        "devices": {name: counts for name, counts in devices.items() if counts},
    }


def _misfits(saved: dict[str, Any], here: dict[str, Any], ignore: tuple[str, ...]) -> list[str]:
    return [
        f"{name} were {saved[name]} and are {here[name]}"
        if name.endswith("s")
        else f"{name} was {saved[name]} and is {here[name]}"
        for name in here
        if name not in ignore and saved[name] != here[name]
    ]


def _missing(state: dict[str, Any], objects: dict[str, Any]) -> list[str]:
    unused = sorted(set(state["objects"]) - set(objects))
    unknown = sorted(set(objects) - set(state["objects"]))
    gone = sorted(set(state["generators"]["registered"]) - set(registered_generators().things()))
    found = []
    if unused:
        found.append(f"{', '.join(unused)} was captured and is not given")
    if unknown:
        found.append(f"{', '.join(unknown)} was not captured")
    if gone:
        found.append(f"the generators {', '.join(gone)} were registered and are not")
    return found
