"""Wakes recording and enabling up in every Python process of the program, then runs the `sitecustomize` that this one hides.

The program's interpreter runs this file whatever its version, so it keeps to Python 3.8; and at every start, so it
imports next to nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_BOOTSTRAP = os.path.dirname(os.path.abspath(__file__))
_LAUNCH = os.path.dirname(_BOOTSTRAP)
_ROOT = os.path.dirname(os.path.dirname(_LAUNCH))


class _OwnPackageFinder:
    """Finds the package that this file belongs to, which need not be on `sys.path`, before any other copy of it."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "determinism":
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [_ROOT])


def _note(reason: str) -> None:
    try:
        import runpy

        runpy.run_path(os.path.join(_LAUNCH, "notes.py"))["note_not_recorded"](reason)
    except Exception:
        pass


def _say(reason: str) -> None:
    try:
        sys.stderr.write(f"determinism: {reason}\n")
    except Exception:
        pass


def _import_own_package(purpose: str) -> None:
    if sys.version_info < (3, 11):
        found = ".".join(map(str, sys.version_info[:2]))
        raise RuntimeError(f"it is Python {found}; {purpose} needs 3.11 or newer. Run the program with a newer Python")
    finder = _OwnPackageFinder()
    sys.meta_path.insert(0, finder)
    try:
        import determinism  # noqa: F401
    finally:
        sys.meta_path.remove(finder)


def _start_recording() -> None:
    if sys.version_info < (3, 11):
        found = ".".join(map(str, sys.version_info[:2]))
        _note(
            f"{sys.executable} is Python {found}; recording needs 3.11 or newer. Run the program with a newer Python."
        )
        return
    _import_own_package("recording")
    from determinism.launch.child import start

    start()


def _start_probing() -> None:
    _import_own_package("probing")
    from determinism.probes.child import start

    start()


def _start_enabling() -> None:
    _import_own_package("making it deterministic")
    from determinism.launch.enabling_child import start

    start()


def _start_factors() -> None:
    _import_own_package("an experiment")
    from determinism.launch.factors_child import start

    start()


sys.path[:] = [entry for entry in sys.path if entry != _BOOTSTRAP]
if "DETERMINISM_PROBES" in os.environ:
    try:
        _start_probing()
    except Exception as error:
        _say(f"{sys.executable} is not probed: {type(error).__name__}: {error}")
if "DETERMINISM_ENABLING" in os.environ:
    try:
        _start_enabling()
    except Exception as error:
        _say(f"{sys.executable} was not made deterministic: {type(error).__name__}: {error}")
if "DETERMINISM_FACTORS" in os.environ:
    try:
        _start_factors()
    except Exception as error:
        _note(f"The experiment could not start in {sys.executable}: {type(error).__name__}: {error}")
if "DETERMINISM_RECORDING" in os.environ:
    try:
        _start_recording()
    except Exception as error:
        _note(f"Recording could not start in {sys.executable}: {type(error).__name__}: {error}")

# Without this module in the way the import system finds the hidden one and leaves it in our place; and where there is
# none, its ModuleNotFoundError is what `site` expects to get.
sys.modules.pop("sitecustomize", None)
__import__("sitecustomize")
