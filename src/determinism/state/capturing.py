"""`determinism.state.capture`: copies everything that a run needs to go on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from determinism import __version__
from determinism.errors import StateError
from determinism.session.seeding import active_seeds, unseeded_numpy
from determinism.state.captured import FORMAT, State
from determinism.state.encoding import Encoder
from determinism.state.frameworks import loaded_keepers
from determinism.state.generators import global_states, registered_states, state_of
from determinism.state.settings_kept import present_settings
from determinism.state.surroundings import surroundings


def capture(*, epoch: int | None = None, step: int | None = None, **parts: Any) -> State:
    """Copy the states of all random generators, the settings, the seeds in force, and the parts of the program that are given.

    Call it where the program saves, between two steps. Nothing is changed by it, and no random number is drawn.

    Args:
        epoch: The epoch that the program is in.
        step: How many steps it has made.
        **parts: By names of your choice, what else a run goes on with: objects with `state_dict()` and `load_state_dict()`
            (model, optimizer, scheduler, scaler, a `resumable` loader), generators of the program's own, and plain values.

    Raises:
        StateError: A part cannot be saved, or does not tell where it is.
    """
    encoder = Encoder()
    registered, unreadable = registered_states()
    seeds = active_seeds()
    own = {name: value for name, value in (("epoch", epoch), ("step", step)) if value is not None}
    described = {name: _part(encoder, name, thing) for name, thing in {**own, **parts}.items()}
    gaps = [f"the registered function {name!r} gives nobody its state" for name in unreadable]
    gaps += [gap for _, adapter in loaded_keepers() for gap in adapter.gaps()]
    document = {
        "format": FORMAT,
        "determinism": __version__,
        "surroundings": surroundings(),
        "settings": present_settings(),
        "seeds": None if seeds is None else encoder.encode(seeds.state_dict(), "seeds"),
        "unseeded": 0 if seeds is None else unseeded_numpy().count,
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
            f"{name} is a {type(thing).__module__}.{type(thing).__qualname__}, which does not tell how far it has come, so nothing "
            f"was captured. Wrap it where it is made, and iterate over that: {name} = determinism.state.resumable({name}).",
        )
    return {"kind": "value", "value": encoder.encode(thing, name)}


def is_stateful(thing: Any) -> bool:
    """Whether an object gives its state and takes it back."""
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))
