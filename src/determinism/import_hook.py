"""Callbacks for when a module has been imported, without importing it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Callback = Callable[[ModuleType], None]
    Failed = Callable[[str], None]


def after_import(name: str, callback: Callback, failed: Failed) -> Callable[[], None]:
    """Call `callback` once, right after a module is executed; at once if it is already imported.

    Args:
        name: Full name of the module.
        callback: Called with the module. Its exceptions do not reach the program.
        failed: Called with a message if it raises.

    Returns:
        A function that cancels the callback if the module has not been imported yet.
    """
    module = sys.modules.get(name)
    if module is not None:
        _call(callback, failed, name, module)
        return _nothing
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    waiting = (callback, failed)
    _FINDER.callbacks.setdefault(name, []).append(waiting)
    return lambda: _FINDER.forget(name, waiting)


def _nothing() -> None:
    pass


def _call(callback: Callback, failed: Failed, name: str, module: ModuleType) -> None:
    try:
        callback(module)
    except Exception as error:
        failed(f"Recording could not start when {name} was imported: {type(error).__name__}: {error}")


IMPORT_SYSTEM_FILE = "<frozen importlib._bootstrap_external>"
"""File name by which Python recognizes the frames of its import system, which it omits from tracebacks."""


class _Finder:
    """Lets the other finders find the module, and wraps its loader to report when it has been executed."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[tuple[Callback, Failed]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.callbacks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module") and hasattr(spec.loader, "create_module"):
                    spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
                return spec
        return None

    def forget(self, name: str, waiting: tuple[Callback, Failed]) -> None:
        entries = self.callbacks.get(name, [])
        # By identity, since equal callbacks may belong to two recordings.
        entries[:] = [entry for entry in entries if entry is not waiting]
        if not entries:
            self.callbacks.pop(name, None)

    def executed(self, name: str, module: ModuleType) -> None:
        for callback, failed in self.callbacks.pop(name, []):
            _call(callback, failed, name, sys.modules.get(name, module))


class _Loader:
    """Replaces a module's loader until just before the module is executed, when it restores the real one."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            name = module.__spec__.name
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.executed(name, module)

    exec_module.__code__ = exec_module.__code__.replace(co_filename=IMPORT_SYSTEM_FILE)


_FINDER = _Finder()
