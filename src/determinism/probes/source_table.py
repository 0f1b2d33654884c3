"""Tells whether something that is called is a source, by what it is and not by its name.

Functions are looked up once the module that has them was imported; nothing is imported for it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

from determinism.import_hook import after_import
from determinism.probes.source_function import SourceFunction

_WRAPPERS = {"torch._dynamo": "torch"}
"""Modules that, when they are imported, put wrappers in the place of functions of another: of `torch.manual_seed`, when the first
optimizer is made (PyTorch 2.13, `torch/_dynamo/__init__.py`)."""


class SourceTable:
    """The sources that there are in this process."""

    def __init__(self, functions: Iterable[SourceFunction]) -> None:
        """Take the functions that are sources, whose modules need not be imported."""
        self._by_module: dict[str, list[SourceFunction]] = {}
        for function in functions:
            self._by_module.setdefault(function.module, []).append(function)
        self.imported: list[types.ModuleType] = []
        """Modules that were imported and not yet looked at: others may put wrappers in between first."""
        self.by_identity: dict[int, SourceFunction] = {}
        self._methods: dict[str, list[tuple[Any, SourceFunction]]] = {}
        self.method_names: set[str] = set()
        """Names of methods written in C, of which each access makes a new object."""
        self._kept: list[Any] = []

    def start(self) -> None:
        """Look out for the modules."""
        for name in self._by_module:
            after_import(name, self.imported.append, _ignore)
        for name in _WRAPPERS:
            after_import(name, self._look_again, _ignore)

    def _look_again(self, wrapper: types.ModuleType) -> None:
        self.imported.append(sys.modules[_WRAPPERS[wrapper.__name__]])

    def resolve(self) -> None:
        """Look up the functions of the modules that were imported since."""
        while self.imported:
            module = self.imported.pop()
            for function in self._by_module.get(module.__name__, ()):
                self._add(module, function)

    def _add(self, module: types.ModuleType, function: SourceFunction) -> None:
        owner: Any = module
        *owners, name = function.name.split(".")
        for part in owners:
            owner = getattr(owner, part, None)
        found = getattr(owner, name, None)
        if found is None:
            return
        is_python = isinstance(found, types.FunctionType | type)
        if owner is module or is_python:
            # It is kept, so that its identity is given to nothing else.
            self._kept.append(found)
            self.by_identity[id(found)] = function
            if isinstance(found, types.MethodType) and isinstance(owner, type):
                self.by_identity[id(found.__func__)] = function
        else:
            self.method_names.add(name)
            self._methods.setdefault(name, []).append((owner, function))

    def method(self, name: str, holder: Any) -> SourceFunction | None:
        """The source that a method written in C is; None if it is none.

        Args:
            name: Its name.
            holder: What it is a method of.
        """
        for owner, function in self._methods.get(name, ()):
            kind = type(holder)
            if holder is owner or owner in kind.__mro__ or (issubclass(kind, type) and owner in holder.__mro__):
                return function
        return None


def _ignore(_: str) -> None:
    return
