"""`determinism.state.restore`: puts a captured state back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from determinism.errors import UsageError
from determinism.session import seeding
from determinism.state.captured import State
from determinism.state.capturing import is_stateful
from determinism.state.generators import put_back, restore_global_states, state_of
from determinism.state.settings_kept import present_settings, put_back_settings
from determinism.state.surroundings import misfits, refusal

_MAY_DIFFER = ("rank", "ranks", "devices", "versions", "settings", "registered")


def restore(state: State, /, *, allow: Collection[str] = (), **parts: Any) -> list[str]:
    """Put everything back that was captured, so that the program goes on as if it had not stopped.

    Everything is checked first; if it does not fit, nothing is changed. The states of generators come last, since whatever loads may
    draw. A `resumable` loader goes on when it is iterated over next, and puts the generators back once more then.

    Args:
        state: What was captured.
        allow: What may be different here: `rank`, `ranks`, `devices`, `versions`, `settings`, `registered`, or the name of a part
            that is not given.
        **parts: The objects that take their state back, under the names that they were captured with. Plain values are not given:
            read them from the state (`state["best_loss"]`, `state.epoch`).

    Returns:
        The settings that were other than when it was captured and were put back, in words.

    Raises:
        StateError: It does not fit here; the message says all of why.
        UsageError: `allow` names what is neither a part nor among these words.
    """
    _check_allowed(state, allow)
    reasons = misfits(state.document["surroundings"], allow)
    reasons += _part_misfits(state, parts, allow) + _registered_misfits(state, allow)
    if reasons:
        raise refusal(reasons)
    # Read before anything is changed: the state may be damaged.
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
            f"allow={allow!r} names {', '.join(unknown) or 'a text where a list is wanted'}, so nothing was put back. Give a list of "
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
            found.append(f"{name} was given, but nothing of it was captured")
        elif saved[name]["kind"] == "value":
            found.append(f"{name} is a plain value: read it as state[{name!r}]")
        elif saved[name]["kind"] == "state_dict":
            found += _stateful_misfits(name, thing, state)
        else:
            present = state_of(thing)
            if present is None or present[0] != saved[name]["kind"]:
                kind = type(thing).__qualname__ if present is None else present[0]
                found.append(f"{name} was a {saved[name]['kind']}, and here is a {kind}")
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
            found.append(f"a generator was registered as {name!r}, and here is none (registered)")
        elif present[0] != saved["kind"]:
            found.append(
                f"the registered generator {name!r} was a {saved['kind']}, and here is a {present[0]} (registered)"
            )
    return found


def _restore_seeds(state: State) -> None:
    saved = state.document["seeds"]
    if saved is None:
        return
    place = state.value(saved)
    seeds = seeding.active_seeds() or seeding.seed(place["master"])
    # Another rank was allowed for, or it is the same.
    seeds.load_state_dict({**place, "rank": seeds.streams.rank})
    seeding.unseeded_numpy().go_on_after(state.document["unseeded"])
