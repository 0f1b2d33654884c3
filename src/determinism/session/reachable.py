"""Finds every object that a call can reach, and copies what each holds."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from determinism.session.attributes import (
    AttributeContents,
    CellContents,
    ClassContents,
    DefaultContents,
    NamespaceContents,
)
from determinism.session.code_names import names_in
from determinism.session.contents import Contents, Parts
from determinism.session.copying import ATOMIC, contents_of
from determinism.session.counters import fresh_copies, is_counter
from determinism.session.framework_state import FrameworkState
from determinism.session.handed_state import HandedState
from determinism.session.ownership import Ownership
from determinism.session.refusals import LOCKS, hidden_reason, refusal, refused
from determinism.session.trail import Trail

_NAMESPACES = (SimpleNamespace, argparse.Namespace)
"""Classes of the standard library whose objects hold only what the user puts there."""
_CACHE_WRAPPER = type(functools.lru_cache(lambda: None))


def globals_of(function: Any) -> dict[str, Any] | None:
    """The globals of the Python function inside a callable: a method, a partial, a decorated function or an object."""
    inner = function
    for _ in range(16):
        for name in ("__wrapped__", "__func__", "func"):
            if callable(nested := getattr(inner, name, None)):
                inner = nested
                break
        else:
            break
    if not isinstance(inner, FunctionType):
        inner = type(inner).__call__ if callable(inner) else None
    return getattr(inner, "__globals__", None)


class _Found(NamedTuple):
    thing: Any
    trail: Trail
    rebound: bool
    """Whether the place that holds it is itself put back, and so may be given a fresh copy."""
    in_library: bool
    """Whether an object of a library holds it."""


class Reachable:
    """The copied contents of everything that was walked, in no particular order.

    The closures of library functions (decorators, compiled functions) are walked for the user's functions in them and
    for what can be copied; what cannot be copied there is the library's own business.
    """

    def __init__(self, ownership: Ownership, frameworks: Sequence[FrameworkState]) -> None:
        """Take whose code counts as the user's, and the loaded frameworks."""
        self.contents: list[tuple[Trail, Contents]] = []
        self.renewals: dict[int, Callable[[], object]] = {}
        """What makes a fresh copy, by the id of the object that only a copy can stand for."""
        self._ownership = ownership
        self._frameworks = frameworks
        self._seen: dict[int, Any] = {}
        self._namespaces: set[tuple[int, str]] = set()
        self._waiting: list[_Found] = []
        self._inside_library: list[_Found] = []
        self._root_globals: dict[str, Any] | None = None

    def walk(self, function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Copy what a call of `function` with these arguments can reach.

        Raises:
            StateError: Something reachable cannot be copied; the message names the way to it.
        """
        self._root_globals = globals_of(function)
        roots = Parts("{}", [("", function)])
        self._expand(Trail(None, "", ""), roots, in_library=False)
        self._expand(Trail(None, "args", ""), Parts("[{}]", enumerate(args)), in_library=False)
        self._expand(Trail(None, "kwargs", ""), Parts("[{}]", kwargs.items()), in_library=False)
        while self._waiting or self._inside_library:
            lenient = not self._waiting
            found = (self._inside_library if lenient else self._waiting).pop()
            self._visit(found, lenient)

    def _visit(self, found: _Found, lenient: bool) -> None:
        thing, trail = found.thing, found.trail
        if is_counter(thing):
            self._keep_counter(found, lenient)
            return
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, FunctionType):
            self._enter_function(thing, trail)
        elif isinstance(thing, type):
            if self._ownership.is_user_class(thing):
                self._add(trail, ClassContents(thing), lenient)
        elif isinstance(thing, _CACHE_WRAPPER):
            self._enter_cache(thing, trail, lenient)
        elif not (_is_namespace(thing) or (found.in_library and isinstance(thing, LOCKS))):
            self._enter_object(found, lenient)

    def _enter_object(self, found: _Found, lenient: bool) -> None:
        thing, trail = found.thing, found.trail
        reason = refusal(thing)
        contents = None if reason else contents_of(thing, self._frameworks)
        if contents is None:
            if not lenient:
                raise refused(thing, trail.text(), reason or hidden_reason(thing))
            return
        kind = type(thing)
        user_class = self._ownership.is_user_class(kind)
        owns = not user_class and not isinstance(thing, _NAMESPACES)
        passes_on = found.in_library and isinstance(thing, BuiltinFunctionType)
        for part in contents:
            owned = passes_on or (owns and isinstance(part, AttributeContents))
            self._add(trail, part, lenient, in_library=owned)
        if user_class:
            self._expand(trail, Parts(".{}", [("__class__", kind)]), in_library=False, lenient=lenient)

    def _enter_function(self, function: FunctionType, trail: Trail) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        mine = self._ownership.is_user_function(function)
        for name, cell in cells:
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self._add(trail, CellContents(cell, name), lenient=not mine)
        if not mine:
            self._expand(trail, Parts(".{}", function.__dict__.items()), in_library=True, lenient=True)
            return
        self._add(trail, DefaultContents(function), lenient=False)
        self._add(trail, AttributeContents(function, function.__dict__), lenient=False)
        self._enter_globals(function)

    def _enter_globals(self, function: FunctionType) -> None:
        names = names_in(function.__code__)
        namespace = function.__globals__
        self._enter_namespace(namespace, names.globals, names.attributes)
        for name in names.imports:
            for full in (name, f"{namespace.get('__package__')}.{name}"):
                module = sys.modules.get(full)
                if module is not None:
                    self._enter_module(module, names.attributes)

    def _enter_namespace(self, namespace: dict[str, Any], names: Iterable[str], attributes: frozenset[str]) -> None:
        new = [name for name in names if (id(namespace), name) not in self._namespaces]
        self._namespaces.update((id(namespace), name) for name in new)
        root = namespace is self._root_globals
        template = "globals()['{}']" if root else f"{namespace.get('__name__')}.{{}}"
        if new:
            self._add(None, NamespaceContents(namespace, new, template), lenient=False)
        for name in names:
            value = namespace.get(name)
            if isinstance(value, ModuleType):
                self._enter_module(value, attributes)

    def _enter_module(self, module: ModuleType, attributes: frozenset[str]) -> None:
        if self._ownership.is_user_module(module):
            present = [name for name in attributes if (id(vars(module)), name) not in self._namespaces]
            if present:
                self._enter_namespace(vars(module), present, attributes)

    def _enter_cache(self, wrapper: Any, trail: Trail, lenient: bool) -> None:
        inner = wrapper.__wrapped__
        self._expand(trail, Parts(".{}", [("__wrapped__", inner)]), in_library=False, lenient=lenient)
        if isinstance(inner, FunctionType) and self._ownership.is_user_function(inner):
            if wrapper.cache_info().currsize:
                raise refused(
                    wrapper, trail.text(), "whose cached results cannot be copied (`cache_clear()` empties it)"
                )
            self.contents.append((trail, HandedState(lambda: None, lambda _: wrapper.cache_clear())))

    def _keep_counter(self, found: _Found, lenient: bool) -> None:
        thing = found.thing
        known = id(thing) in self.renewals
        copies = fresh_copies(thing) if found.rebound and not known else None
        if copies is not None:
            self._seen[id(thing)] = thing
            self.renewals[id(thing)] = copies[0]
            self._expand(found.trail, Parts(".<{}>", [("items", item) for item in copies[1]]), in_library=False)
        elif not (lenient or (known and found.rebound)):
            raise refused(thing, found.trail.text(), hidden_reason(thing))

    def _add(self, trail: Trail | None, contents: Contents, lenient: bool, in_library: bool = False) -> None:
        if type(contents) is not Parts:
            self.contents.append((trail or Trail(None, contents.template, "..."), contents))
        self._expand(trail, contents, in_library, lenient)

    def _expand(self, trail: Trail | None, contents: Contents, in_library: bool, lenient: bool = False) -> None:
        waiting = self._inside_library if lenient else self._waiting
        for key, thing in contents.children():
            if type(thing) not in ATOMIC:
                waiting.append(_Found(thing, Trail(trail, contents.template, key), contents.rebinds, in_library))


def _is_namespace(thing: object) -> bool:
    """Whether `thing` is what a module's names are bound in: no more part of the state than the module."""
    if type(thing) is not dict:
        return False
    module = sys.modules.get(name) if isinstance(name := thing.get("__name__"), str) else None
    return module is not None and vars(module) is thing
