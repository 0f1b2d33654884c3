"""Whose code something is: the user's, or that of Python, a framework or another installed package."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from types import FunctionType, ModuleType
from typing import Any

_FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "numpy", "determinism"})
_INSTALLED = tuple(
    {
        os.path.join(os.path.realpath(folder), "")
        for folder in (
            *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
            *site.getsitepackages(),
            site.getusersitepackages(),
            os.path.dirname(os.path.dirname(__file__)),
        )
    }
)


class Ownership:
    """Tells user code from libraries; the package that the checked function belongs to is always user code."""

    def __init__(self, module: str | None) -> None:
        """Take the name of the module that the checked function is in."""
        package = (module or "").partition(".")[0]
        self._package = "" if package in _FRAMEWORKS or package in sys.stdlib_module_names else package
        self._modules: dict[str, bool] = {}

    def is_user_function(self, function: FunctionType) -> bool:
        """Whether a function is the user's."""
        file = function.__code__.co_filename
        if file.startswith("<frozen"):
            return False
        module = function.__globals__.get("__name__")
        if file.startswith("<"):
            return not isinstance(module, str) or self.is_user_module_name(module)
        return self._in_package(module) or not _is_installed(file)

    def is_user_class(self, kind: type[Any]) -> bool:
        """Whether a class is the user's."""
        module = kind.__dict__.get("__module__", "builtins")
        return isinstance(module, str) and self.is_user_module_name(module)

    def is_user_module(self, module: ModuleType) -> bool:
        """Whether a module is the user's."""
        return self.is_user_module_name(module.__name__)

    def is_user_module_name(self, name: str) -> bool:
        """Whether the module of that name is the user's."""
        known = self._modules.get(name)
        if known is None:
            known = self._modules[name] = self._in_package(name) or _is_user_module(name)
        return known

    def _in_package(self, module: object) -> bool:
        return isinstance(module, str) and bool(self._package) and module.partition(".")[0] == self._package


def _is_user_module(name: str) -> bool:
    if name.partition(".")[0] in sys.builtin_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if isinstance(file, str):
        return not _is_installed(file)
    # A module without a file is built in, a namespace, or what was typed at a prompt; C types may name no real module.
    return name == "__main__" or (name not in sys.modules and "." not in name and name not in sys.stdlib_module_names)


def _is_installed(file: str) -> bool:
    return os.path.realpath(file).startswith(_INSTALLED)
