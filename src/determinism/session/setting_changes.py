"""Makes one setting, or looks at it, and knows how to undo that."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module

from determinism.frameworks.registry import ENABLERS
from determinism.settings import variables
from determinism.settings.facts import Fact
from determinism.settings.request import Request
from determinism.settings.setting import Effect, Setting
from determinism.settings.surroundings import condition_holds, is_loaded, xla_knows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from determinism.settings.control import Control

_NUMERICAL = ("numpy", "scipy", "torch", "tensorflow", "jax")
"""Whatever loads one of these has loaded what reads the variables of numerical libraries."""

_CONDITIONS = {
    "nvidia": "there is no NVIDIA device",
    "mkl": "nothing here computes with oneMKL",
    "warn-only": "it matters only where ops warn instead of raising",
}


@dataclass(frozen=True)
class Change:
    """A setting, and what puts it back."""

    setting: Setting
    undo: Callable[[], None] | None = None


def make(fact: Fact, version: str, request: Request) -> Change:
    """Make a setting, or look at it.

    Args:
        fact: What is known of it.
        version: Of its framework; empty for none.
        request: What is asked for.
    """
    if version and not fact.exists_in(version):
        return _unchanged(fact, Effect.ABSENT, f"{fact.group} {version} is installed; it is for {fact.versions}")
    if fact.condition == "warn-only" and not request.warn_only:
        return _unchanged(fact, Effect.UNNEEDED, _CONDITIONS[fact.condition])
    if not condition_holds(fact.condition):
        package = fact.condition.removeprefix("package:")
        return _unchanged(fact, Effect.UNNEEDED, _CONDITIONS.get(fact.condition, f"{package} is not installed"))
    if fact.kind == "variable":
        return _make_variable(fact, request)
    if not is_loaded(fact.group) and not (fact.kind == "flag" and version):
        return _unchanged(fact, Effect.WAITING)
    return _make_flag(fact, request) if fact.kind == "flag" else _make_control(fact, request)


def wanted(fact: Fact, request: Request) -> Any:
    """What a setting should be; None if it is only looked at, or if a variable should not be set."""
    if fact.option:
        value = getattr(request, fact.option)
        return str(value) if fact.kind == "variable" and value is not None else value
    if request.warn_only and fact.value_if_warning is not None:
        return fact.value_if_warning
    return fact.value


def _unchanged(fact: Fact, effect: Effect, detail: str = "", value: Any = None) -> Change:
    return Change(_setting(fact, value, value, effect, detail))


def _setting(fact: Fact, before: Any, after: Any, effect: Effect, detail: str = "") -> Setting:
    return Setting(fact.name, fact.group, before, after, effect, fact.why, fact.source, detail, fact.line)


def _make_variable(fact: Fact, request: Request) -> Change:
    before, value = os.environ.get(fact.name), wanted(fact, request)
    if fact.option and value is None:
        return _unchanged(fact, Effect.KEPT, value=before)
    in_force = variables.value_at_start(fact.name) if fact.moment == "start" else before
    if fact.accepts(in_force, value):
        return _unchanged(fact, Effect.ALREADY, value=in_force)
    if not request.change:
        return _unchanged(fact, Effect.MISSING, value=in_force)
    is_late = _has_passed(fact)
    detail = f"{_moment(fact)}; processes started from now on have it" if is_late else ""
    # What children have counts as done where they have it already.
    if not fact.accepts(before, value):
        variables.write(fact.name, value)
    after = os.environ.get(fact.name)
    effect = Effect.FRESH if is_late else Effect.NOW
    return Change(_setting(fact, before, after, effect, detail), lambda: variables.write(fact.name, before))


def _make_flag(fact: Fact, request: Request) -> Change:
    flags = os.environ.get(variables.XLA_FLAGS)
    before, value = variables.flag_value(flags or "", fact.name), wanted(fact, request)
    if not xla_knows(fact.name):
        return _unchanged(fact, Effect.ABSENT, "the installed XLA does not know it, and would end the process", before)
    if fact.accepts(before, value):
        return _unchanged(fact, Effect.ALREADY, value=before)
    if not request.change:
        return _unchanged(fact, Effect.MISSING, value=before)
    is_late = _has_passed(fact)
    detail = f"{_moment(fact)}; processes started from now on have it" if is_late else ""
    variables.write(variables.XLA_FLAGS, variables.with_flag(flags or "", fact.name, value))
    effect = Effect.FRESH if is_late else Effect.NOW
    return Change(_setting(fact, before, value, effect, detail), lambda: variables.write(variables.XLA_FLAGS, flags))


def _make_control(fact: Fact, request: Request) -> Change:
    value = wanted(fact, request)
    try:
        control: Control = import_module(ENABLERS[fact.group]).CONTROLS[fact.name]
    except Exception as error:
        # A version of the framework that is put together otherwise.
        return _unchanged(fact, Effect.FAILED, f"its adapter cannot be loaded: {type(error).__name__}: {error}")
    try:
        before = control.read()
    except (AttributeError, ImportError) as error:
        return _unchanged(fact, Effect.ABSENT, f"{type(error).__name__}: {error}")
    except Exception as error:
        # Some cannot be read once the program has used another setting for the same thing.
        detail = f"it cannot be read: {type(error).__name__}: {error}"
        return _unchanged(fact, Effect.KEPT if value is None else Effect.FAILED, detail)
    if value is None:
        return _unchanged(fact, Effect.KEPT, value=before)
    undo = _restorer(control, before)
    if fact.accepts(before, value):
        # Another setting may change this one, too.
        return Change(_setting(fact, before, before, Effect.ALREADY), undo if request.change else None)
    if not request.change:
        return _unchanged(fact, Effect.MISSING, value=before)
    try:
        control.write(value)
        after = control.read()
    except Exception as error:
        return Change(_setting(fact, before, before, Effect.FAILED, f"{type(error).__name__}: {error}"), undo)
    if not fact.accepts(after, value):
        return Change(_setting(fact, before, after, Effect.FAILED, f"it was set to {value!r} and is {after!r}"), undo)
    return Change(_setting(fact, before, after, Effect.NOW), undo)


def _restorer(control: Control, before: Any) -> Callable[[], None]:
    def restore() -> None:
        if control.read() != before:
            control.write(before)

    return restore


def _has_passed(fact: Fact) -> bool:
    """Whether the moment has passed up to which a setting must be made."""
    if fact.moment == "any":
        return False
    if fact.moment == "start":
        return True
    if fact.moment == "import":
        return is_loaded(fact.condition.removeprefix("package:") or fact.group)
    if fact.moment == "libraries":
        return any(is_loaded(name) for name in _NUMERICAL)
    return any(import_module(module).has_begun(fact.moment) for name, module in ENABLERS.items() if is_loaded(name))


def _moment(fact: Fact) -> str:
    """The moment up to which a setting must be made, in words."""
    return {
        "start": "Python reads it when it starts",
        "import": f"{fact.condition.removeprefix('package:') or fact.group} was imported before",
        "libraries": "the libraries that read it were loaded before",
        "device": "the device was in use before",
        "collectives": "processes were connected before",
    }[fact.moment]
