"""`determinism.state.capture` and `restore`: save and restore everything that a run needs to continue."""

from __future__ import annotations

import os
import platform
import random
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from determinism import rng
from determinism.errors import StateError, UsageError
from determinism.frameworks.registry import ENABLERS, STATES
from determinism.knowledge.settings import Control
from determinism.session import seeding
from determinism.session.seeding import active_seeds, rank_of_environment, registered_generators
from determinism.state.captured import FORMAT, Encoder, State, from_bytes, keeper, loaded_keepers
from determinism.types import __version__

# The states of random generators: global, registered and single ones.


def global_states() -> dict[str, Any]:
    """Return the states of the global generators of Python, NumPy and every loaded framework, on all devices."""
    states = rng.capture()
    found: dict[str, Any] = {"python": _python_state(states.python), "numpy": states.numpy}
    found.update((name, adapter.generator_states()) for name, adapter in loaded_keepers())
    return found


def restore_global_states(states: dict[str, Any]) -> None:
    """Restore the states of global generators, importing their frameworks if necessary."""
    frameworks = [name for name in states if name not in ("python", "numpy")]
    if states["numpy"] is not None:
        # The generator that the state belongs to exists only after this import.
        import numpy.random  # noqa: F401
    for name in frameworks:
        keeper(name).restore_generator_states(states[name])
    rng.restore(rng.GeneratorStates(_python_tuple(states["python"]), states["numpy"]))


def registered_states() -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """Return the kind and state of each registered generator by name, and the names of those with unreadable state."""
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
    """Return the kind and state of a generator; None if `thing` is not one or does not expose its state."""
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
    """Restore a state in a generator of the same kind."""
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


# The settings of the loaded frameworks that affect results: their current and their saved values.

_SLOW = {"torch._inductor.config.deterministic": "torch._inductor.config"}
"""Settings in modules that take seconds to import; until something imports these, the settings have their defaults."""


def present_settings() -> dict[str, Any]:
    """Return the name and value of each setting that this version has."""
    found = {}
    for name, control in _controls():
        value = _read(control)
        if isinstance(value, str | int | float | bool):
            found[name] = value
    return found


def put_back_settings(saved: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Restore the saved values of settings.

    Args:
        saved: The result of `present_settings`.

    Returns:
        The settings that were changed, and those that still differ, each in words with both values.
    """
    changed, differing = [], []
    controls = dict(_controls())
    for name, value in saved.items():
        if name in _SLOW and name not in controls:
            import_module(_SLOW[name])
            controls = dict(_controls())
        present = _read(controls[name]) if name in controls else None
        if present == value:
            continue
        text = f"{name}: was {value!r}, is {present!r}"
        try:
            controls[name].write(value)
        except Exception as error:
            differing.append(f"{text} ({type(error).__name__}: {error})")
        else:
            changed.append(text)
    return changed, differing


def _controls() -> Iterator[tuple[str, Control]]:
    for framework, module in ENABLERS.items():
        if framework in sys.modules:
            for name, control in import_module(module).CONTROLS.items():
                if _SLOW.get(name, framework) in sys.modules:
                    yield name, control


def _read(control: Control) -> Any:
    try:
        return control.read()
    except Exception:
        # This version lacks the setting, or there is no device for it.
        return None


# Where a state was captured: versions, rank, devices. The state fits only where these are the same.

_WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "HOROVOD_SIZE", "SLURM_NTASKS")
"""Environment variables in which launchers pass the number of ranks, in the order of those for the rank."""


def surroundings() -> dict[str, Any]:
    """Return the rank, the number of ranks, the devices, and the versions of Python and the loaded libraries."""
    seeds = active_seeds()
    together = next((found for _, adapter in loaded_keepers() if (found := adapter.rank()) is not None), None)
    rank = rank_of_environment() if together is None else together[0]
    if rank is None and seeds is not None:
        rank = seeds.streams.rank
    world = next((os.environ[name] for name in _WORLD_VARIABLES if os.environ.get(name, "").isdecimal()), "1")
    if together is not None:
        world = str(together[1])
    devices: dict[str, int] = {}
    for _, adapter in loaded_keepers():
        devices.update(adapter.devices())
    return {"rank": rank or 0, "ranks": int(world), "devices": devices, "versions": _versions()}


def _versions() -> dict[str, str]:
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("numpy", *STATES):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def resume_obstacles(saved: Mapping[str, Any], allow: Collection[str]) -> list[str]:
    """Describe differences in the surroundings that keep a resumed run from being bit-identical.

    Args:
        saved: The result of `surroundings` when the state was captured.
        allow: Names of surroundings that may differ: `rank`, `ranks`, `devices` or `versions`.
    """
    here = surroundings()
    found = []
    if saved["rank"] != here["rank"] and "rank" not in allow:
        found.append(f"it was captured by rank {saved['rank']}, but this is rank {here['rank']} (rank)")
    if saved["ranks"] != here["ranks"] and "ranks" not in allow:
        found.append(f"it was captured with {saved['ranks']} ranks, but there are {here['ranks']} here (ranks)")
    for kind in sorted({*saved["devices"], *here["devices"]}):
        counts = saved["devices"].get(kind, 0), here["devices"].get(kind, 0)
        if counts[0] != counts[1] and "devices" not in allow:
            found.append(f"there were {counts[0]} devices of kind {kind}, but there are {counts[1]} here (devices)")
    for name, version in saved["versions"].items():
        # A library that is not imported yet will be, when its part of the state is restored.
        present = here["versions"].get(name, version)
        if present != version and "versions" not in allow:
            found.append(f"it was captured with {name} {version}, but {present} is loaded here (versions)")
    return found


def refusal(reasons: list[str]) -> StateError:
    """Return the error that says why a state does not fit.

    Args:
        reasons: The reasons, in words.
    """
    return StateError(
        "state-unfit",
        f"The state does not fit here, so nothing was restored: {'; '.join(reasons)}. A run resumed from it would not be "
        "bit-identical to the saved one. Resume in the same setup, or name what may differ: restore(state, "
        'allow=["versions"], ...).',
    )


def capture(*, epoch: int | None = None, step: int | None = None, **parts: Any) -> State:
    """Copy the states of all random generators, the settings, the seeds in force, and the given parts of the program.

    Call it where the program saves, between two steps. It changes nothing and draws no random numbers.

    Args:
        epoch: The current epoch of the program.
        step: The number of steps made so far.
        **parts: Under names of your choice, everything else that a run continues with: objects with `state_dict()` and
            `load_state_dict()` (model, optimizer, scheduler, scaler, a `resumable` loader), the program's own
            generators, and plain values.

    Raises:
        StateError: A part cannot be saved, or does not expose its position.

    Returns:
        The state; `save` writes it to a file, and `gaps` lists what could not be captured.

    Example:
        >>> state = determinism.state.capture(epoch=3, best_loss=0.25)
        >>> state.epoch, state["best_loss"]
        (3, 0.25)
    """
    encoder = Encoder()
    registered, unreadable = registered_states()
    seeds = active_seeds()
    own = {name: value for name, value in (("epoch", epoch), ("step", step)) if value is not None}
    described = {name: _part(encoder, name, thing) for name, thing in {**own, **parts}.items()}
    gaps = [f"the registered function {name!r} does not expose its state" for name in unreadable]
    gaps += [gap for _, adapter in loaded_keepers() for gap in adapter.gaps()]
    document = {
        "format": FORMAT,
        "determinism": __version__,
        "surroundings": surroundings(),
        "settings": present_settings(),
        "seeds": None if seeds is None else encoder.encode(seeds.state_dict(), "seeds"),
        "unseeded": 0 if seeds is None else seeding.STATE.unseeded_numpy.count,
        "generators": {name: encoder.encode(state, f"generators.{name}") for name, state in global_states().items()},
        "registered": {
            name: {"kind": kind, "value": encoder.encode(state, f"registered.{name}")}
            for name, (kind, state) in registered.items()
        },
        "parts": described,
        "gaps": gaps,
    }
    return State(document, encoder.arrays)


def _part(encoder: Encoder, name: str, thing: Any) -> dict[str, Any]:
    generator = state_of(thing)
    if generator is not None:
        return {"kind": generator[0], "value": encoder.encode(generator[1], name)}
    if is_stateful(thing):
        return {"kind": "state_dict", "value": encoder.encode(thing.state_dict(), name)}
    if isinstance(thing, Iterable) and hasattr(thing, "batch_sampler"):
        raise StateError(
            "state-loader-untracked",
            f"{name} is a {type(thing).__module__}.{type(thing).__qualname__}, which does not expose its position, so nothing "
            f"was captured. Wrap it where it is made, and iterate over the wrapper: {name} = determinism.state.resumable({name}).",
        )
    return {"kind": "value", "value": encoder.encode(thing, name)}


def is_stateful(thing: Any) -> bool:
    """Whether an object can return its state and load it again."""
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


# `determinism.state.restore`: restores a captured state.

_MAY_DIFFER = ("rank", "ranks", "devices", "versions", "settings", "registered")


def restore(state: State, /, *, allow: Collection[str] = (), **parts: Any) -> list[str]:
    """Restore everything that was captured, so that the program continues as if it had not stopped.

    Everything is checked first; if the state does not fit, nothing is changed. Generators are restored last, since
    loading may draw. A `resumable` loader continues when next iterated over, and then restores the generators again.

    Args:
        state: The captured state.
        allow: What may differ here: `rank`, `ranks`, `devices`, `versions`, `settings`, `registered`, or the name of a
            part that is not given.
        **parts: The objects whose state is restored, under the names with which they were captured. Do not pass plain
            values: read them from the state (`state["best_loss"]`, `state.epoch`).

    Returns:
        The settings that had changed since the capture and were restored, in words.

    Raises:
        StateError: The state does not fit here; the message lists all reasons.
        UsageError: `allow` contains a name that is neither a part nor one of these words.

    Example:
        >>> import random
        >>> state = determinism.state.capture()
        >>> first = random.random()
        >>> changed = determinism.state.restore(state)
        >>> random.random() == first
        True
    """
    _check_allowed(state, allow)
    reasons = resume_obstacles(state.document["surroundings"], allow)
    reasons += _part_misfits(state, parts, allow) + _registered_misfits(state, allow)
    if reasons:
        raise refusal(reasons)
    # Decoded before anything is changed, since the state may be damaged.
    values = {name: state[name] for name in parts}
    registered = {name: state.value(saved["value"]) for name, saved in state.document["registered"].items()}
    generators = {name: state.value(saved) for name, saved in state.document["generators"].items()}
    changed = _restore_settings(state, allow)
    _restore_seeds(state)
    for name, thing in parts.items():
        if state.document["parts"][name]["kind"] == "state_dict":
            thing.load_state_dict(values[name])
        else:
            put_back(thing, values[name])
    things = seeding.registered_generators().things()
    for name, value in registered.items():
        if name in things:
            put_back(things[name], value)
    restore_global_states(generators)
    return changed


def _restore_settings(state: State, allow: Collection[str]) -> list[str]:
    present = present_settings()
    changed, differing = put_back_settings(state.document["settings"])
    if differing and "settings" not in allow:
        put_back_settings(present)
        raise refusal([f"{text} (settings)" for text in differing])
    return changed


def _check_allowed(state: State, allow: Collection[str]) -> None:
    known = [*_MAY_DIFFER, *state.parts]
    unknown = [name for name in ([allow] if isinstance(allow, str) else allow) if name not in known]
    if unknown or isinstance(allow, str):
        raise UsageError(
            "allow-unknown",
            f"allow={allow!r} names {', '.join(unknown) or 'a string instead of a list'}, so nothing was restored. Give a list of "
            f"these: {', '.join(known)}.",
        )


def _part_misfits(state: State, parts: dict[str, Any], allow: Collection[str]) -> list[str]:
    saved = state.document["parts"]
    found = []
    for name, part in saved.items():
        if part["kind"] != "value" and name not in parts and name not in allow:
            found.append(f"it holds {name}, which was not given ({name}=...)")
    for name, thing in parts.items():
        if name not in saved:
            found.append(f"{name} was given, but was not captured")
        elif saved[name]["kind"] == "value":
            found.append(f"{name} is a plain value: read it as state[{name!r}]")
        elif saved[name]["kind"] == "state_dict":
            found += _stateful_misfits(name, thing, state)
        else:
            present = state_of(thing)
            if present is None or present[0] != saved[name]["kind"]:
                kind = type(thing).__qualname__ if present is None else present[0]
                found.append(f"{name} was a {saved[name]['kind']}, but is a {kind} here")
    return found


def _stateful_misfits(name: str, thing: Any, state: State) -> list[str]:
    if not is_stateful(thing):
        return [f"{name} has no state_dict() and load_state_dict() here: {type(thing).__qualname__}"]
    look = getattr(thing, "determinism_misfits", None)
    return [f"{name}: {reason}" for reason in look(state[name])] if look is not None else []


def _registered_misfits(state: State, allow: Collection[str]) -> list[str]:
    if "registered" in allow:
        return []
    things = seeding.registered_generators().things()
    found = []
    for name, saved in state.document["registered"].items():
        present = state_of(things[name]) if name in things else None
        if present is None:
            found.append(f"a generator was registered as {name!r}, but there is none here (registered)")
        elif present[0] != saved["kind"]:
            found.append(
                f"the registered generator {name!r} was a {saved['kind']}, but is a {present[0]} here (registered)"
            )
    return found


def _restore_seeds(state: State) -> None:
    saved = state.document["seeds"]
    if saved is None:
        return
    place = state.value(saved)
    seeds = seeding.active_seeds() or seeding.seed(place["master"])
    # The rank is the same, or a different one was allowed.
    seeds.load_state_dict({**place, "rank": seeds.streams.rank})
    seeding.STATE.unseeded_numpy.go_on_after(state.document["unseeded"])


# A state that checkpoints itself, for `torch.distributed.checkpoint`.


class Checkpointed:
    """Captures the state when `state_dict` is called, and restores it in `load_state_dict`.

    It is a `Stateful` of `torch.distributed.checkpoint`. Each rank saves under its own name, because data that ranks save
    under the same name counts as identical and is kept once.

    Example:
        >>> checkpointed = determinism.state.Checkpointed(epoch=3)
        >>> saved = checkpointed.state_dict()
        >>> checkpointed.values["epoch"] = 4
        >>> checkpointed.load_state_dict(saved)
        >>> checkpointed.values["epoch"]
        3
    """

    def __init__(self, *, allow: Collection[str] = (), **parts: Any) -> None:
        """Take the parts of the state.

        Args:
            allow: As for `restore`.
            **parts: As for `capture`; plain values are taken as they are now. Change them through `values`.
        """
        self.values: dict[str, Any] = {
            name: part for name, part in parts.items() if not is_stateful(part) and state_of(part) is None
        }
        self._parts = {name: part for name, part in parts.items() if name not in self.values}
        self._allow = allow

    def state_dict(self) -> dict[str, bytes]:
        """Return the current state, under the name of this rank."""
        return {_name(): capture(**self._parts, **self.values).to_bytes()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a state.

        Args:
            saved: The result of `state_dict`.

        Raises:
            StateError: It has no state for this rank, or the state does not fit.
        """
        if _name() not in saved:
            raise StateError(
                "state-unfit",
                f"The checkpoint holds states of {', '.join(sorted(map(str, saved))) or 'no rank'}, but this is {_name()}, so nothing "
                "was restored. Resume with as many ranks as it was saved with.",
            )
        state = from_bytes(saved[_name()])
        restore(state, allow=self._allow, **self._parts)
        self.values = {name: state[name] for name in self.values if name in state}


def _name() -> str:
    return f"rank-{surroundings()['rank']}"
