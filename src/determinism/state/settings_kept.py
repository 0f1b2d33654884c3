"""The settings of the loaded frameworks that change results, as they are and as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from determinism.frameworks.registry import ENABLERS
from determinism.settings.control import Control

_SLOW = {"torch._inductor.config.deterministic": "torch._inductor.config"}
"""Settings in modules that take seconds to import; as long as nobody has, they are what they always are at first."""


def present_settings() -> dict[str, Any]:
    """Name and value of each setting that this version has."""
    found = {}
    for name, control in _controls():
        value = _read(control)
        if isinstance(value, str | int | float | bool):
            found[name] = value
    return found


def put_back_settings(saved: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Give the settings the values that they had.

    Args:
        saved: What `present_settings` gave.

    Returns:
        What was changed, and what differs still, each with its values.
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
        # This version has no such setting, or no device that it is for.
        return None
