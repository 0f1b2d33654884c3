"""What a call can reach, copied so that a second call starts where the first did."""

from __future__ import annotations

import argparse
import contextvars
import datetime
import enum
import functools
import gc
import io
import logging
import numbers
import operator
import os
import pathlib
import random
import re
import site
import struct
import sys
import sysconfig
import threading
import types
import uuid
import weakref
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial, partialmethod
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from determinism import rng
from determinism.errors import StateError
from determinism.session.contents import (
    AttributeContents,
    BytesContents,
    CellContents,
    ClassContents,
    Contents,
    DefaultContents,
    DequeContents,
    DictContents,
    FactoryContents,
    ListContents,
    NamespaceContents,
    Parts,
    SetContents,
    SlotContents,
    slot_names,
)
from determinism.session.restoring import (
    LOCKS,
    FrameworkState,
    HandedState,
    array_contents,
    context_variable_contents,
    fresh_copies,
    hidden_reason,
    is_counter,
    is_standard_stream,
    is_value,
    loaded_frameworks,
    names_in,
    numpy_generator_contents,
    pickled_contents,
    python_generator_contents,
    refusal,
    refused,
)

# How the contents of each type are copied.

ATOMIC = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, object})
"""Types whose instances hold nothing; only these very types."""

_STATELESS: tuple[type[Any], ...] = (
    *(enum.Enum, re.Pattern, re.Match, pathlib.PurePath, uuid.UUID, struct.Struct, slice, TypeVar),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
    *(types.CodeType, types.TracebackType, types.GenericAlias, types.UnionType, types.ModuleType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(operator.itemgetter, operator.attrgetter, operator.methodcaller),
    *(logging.Logger, logging.LoggerAdapter, logging.Handler, logging.Filter, logging.Formatter, logging.Manager),
)
_VALUES = (numbers.Number, str, bytes)
_STATELESS_NAMES = frozenset(
    {
        *("pyarrow.lib.Array", "pyarrow.lib.ChunkedArray", "pyarrow.lib.DataType", "pyarrow.lib.Field"),
        *("pyarrow.lib.Scalar", "pyarrow.lib.Schema", "pyarrow.lib._Tabular"),
        *(
            "jax._src.random.prng.PRNGKeyArray",
            "jax._src.prng.PRNGKeyArray",
            "triton.runtime.jit.KernelInterface",
            "numpy.generic",
            "numpy.dtype",
            "numpy.ufunc",
        ),
        *("rich.console.Console", "torch._ops.OperatorBase", "torch._ops.OpOverloadPacket"),
        *("torch.library.Library", "_json.Scanner", "_json.Encoder", "_collections._tuplegetter"),
    }
)


def contents_of(thing: Any, frameworks: Sequence[FrameworkState]) -> list[Contents] | None:
    """Copy what an object holds; None if it keeps its state where it cannot be copied."""
    kind = type(thing)
    if issubclass(kind, _STATELESS) or _is_stateless_by_name(kind) or is_standard_stream(thing):
        return []
    for wrapper, parts in _WRAPPERS:
        if issubclass(kind, wrapper):
            return parts(thing)
    own = _own_contents(thing, frameworks)
    if own is None:
        return None
    # What a framework keeps in the attributes of its own objects may be no state of the program's.
    is_whole = any(getattr(part, "is_whole", False) for part in own)
    return own if is_whole else [*own, *_attributes(thing)]


def _own_contents(thing: Any, frameworks: Sequence[FrameworkState]) -> list[Contents] | None:
    """What an object holds beside its attributes; None if it is hidden."""
    kind = type(thing)
    if issubclass(kind, _VALUES):
        return []
    for base, copy in _CONTAINERS:
        if issubclass(kind, base):
            return copy(thing)
    special = array_contents(thing)
    if special is None:
        special = numpy_generator_contents(thing)
    if special is not None:
        return special
    for framework in frameworks:
        contents = framework.contents_of(thing)
        if contents is not None:
            return list(contents)
    return _hidden_contents(thing) if _hides_state(kind) else []


def _hidden_contents(thing: Any) -> list[Contents] | None:
    """What an object of a C type gives to pickle; None for iterators, and for those that give nothing."""
    if hasattr(type(thing), "__next__"):
        return None
    contents = pickled_contents(thing)
    return [] if contents is None and is_value(thing) else contents


def _attributes(thing: Any) -> list[Contents]:
    contents: list[Contents] = []
    attributes = getattr(thing, "__dict__", None)
    if type(attributes) is dict:
        contents.append(AttributeContents(thing, attributes))
    if slot_names(type(thing)):
        contents.append(SlotContents(thing))
    return contents


def _hides_state(kind: type[Any]) -> bool:
    """Whether instances are larger than their attributes account for, which is what pickle asks as well."""
    managed_dict = 1 << 4
    pointers = len(slot_names(kind)) + (kind.__weakrefoffset__ > 0)
    pointers += kind.__dictoffset__ != 0 and not kind.__flags__ & managed_dict
    return kind.__basicsize__ > object.__basicsize__ + pointers * struct.calcsize("P") or kind.__itemsize__ != 0


def _is_stateless_by_name(kind: type[Any]) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" in _STATELESS_NAMES for base in kind.__mro__)


def _parts(template: str, *names: str) -> Callable[[Any], list[Contents]]:
    def parts(thing: Any) -> list[Contents]:
        return [Parts(template, [(name, getattr(thing, name)) for name in names])]

    return parts


def _referents(thing: Any) -> list[Contents]:
    return [Parts(".<{}>", [("mapping", held) for held in gc.get_referents(thing)])]


def _partial_contents(thing: partial[Any]) -> list[Contents]:
    return [*_parts(".{}", "func", "args", "keywords")(thing), *_attributes(thing)]


def _exception_contents(thing: BaseException) -> list[Contents]:
    return _parts(".{}", "args", "__cause__", "__context__")(thing)


def _sequence(thing: Any) -> list[Contents]:
    return [Parts("[{}]", enumerate(tuple.__iter__(thing) if isinstance(thing, tuple) else thing))]


def _defaultdict_contents(thing: defaultdict[Any, Any]) -> list[Contents]:
    return [DictContents(thing), FactoryContents(thing)]


def _nothing(thing: Any) -> list[Contents]:
    return []


# What only passes on another object: its attributes, if it has any, are those of what it wraps.
_WRAPPERS: tuple[tuple[type[Any] | tuple[type[Any], ...], Callable[[Any], list[Contents]]], ...] = (
    (types.MethodType, _parts(".{}", "__self__", "__func__")),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _parts(".{}", "__self__")),
    ((staticmethod, classmethod), _parts(".{}", "__func__")),
    (property, _parts(".{}", "fget", "fset", "fdel")),
    (cached_property, _parts(".{}", "func")),
    (partialmethod, _parts(".{}", "func", "args", "keywords")),
    (partial, _partial_contents),
    (weakref.ref, lambda thing: [Parts("{}", [("()", thing())])]),
    (weakref.ProxyTypes, lambda thing: [Parts("{}", [("", thing.__repr__.__self__)])]),
    ((types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items())), _referents),
    (memoryview, _parts(".{}", "obj")),
)
_CONTAINERS: tuple[tuple[type[Any] | tuple[type[Any], ...], Callable[[Any], list[Contents] | None]], ...] = (
    (defaultdict, _defaultdict_contents),
    (dict, lambda thing: [DictContents(thing)]),
    (list, lambda thing: [ListContents(thing)]),
    ((tuple, frozenset), _sequence),
    (set, lambda thing: [SetContents(thing)]),
    (deque, lambda thing: [DequeContents(thing)]),
    ((bytearray, array), lambda thing: [BytesContents(thing)]),
    (random.Random, python_generator_contents),
    (contextvars.ContextVar, context_variable_contents),
    (BaseException, _exception_contents),
    (threading.local, _nothing),
    ((io.StringIO, io.BytesIO), pickled_contents),
)


# Whose code something is: the user's, or that of Python, a framework or another installed package.

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


# The way from a call to an object that it reaches.


class Trail(NamedTuple):
    """The way to an object, for messages."""

    parent: Trail | None
    template: str
    key: object

    def text(self) -> str:
        """The way as an expression."""
        steps: list[str] = []
        at: Trail | None = self
        while at is not None:
            steps.append(at._step())
            at = at.parent
        return "".join(reversed(steps)).removeprefix(".") or "the function"

    def _step(self) -> str:
        plain = isinstance(self.key, str) and self.template != "[{}]"
        shown = repr(self.key) if type(self.key) in (str, int, bytes, float, bool) else f"<{type(self.key).__name__}>"
        return self.template.format(self.key if plain else shown)


# Finds every object that a call can reach, and copies what each holds.

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


class Snapshot:
    """The state that a call depends on, at one moment.

    Objects are put back in place: whoever holds them holds the same objects afterwards.
    """

    def __init__(self, reached: Reachable, frameworks: Mapping[str, FrameworkState]) -> None:
        """Use `take` instead."""
        self._contents = sorted(reached.contents, key=lambda entry: entry[1].order)
        # Keeps every object alive that the copies are known by.
        self._reached = reached
        self._generators = rng.capture()
        self._framework_generators = {name: state.capture_generators() for name, state in frameworks.items()}

    @classmethod
    def take(cls, function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Snapshot:
        """Copy the contents of everything that a call of `function` with these arguments can reach.

        Raises:
            StateError: Something reachable cannot be copied; the message names the way to it.
        """
        frameworks = loaded_frameworks()
        module = (globals_of(function) or {}).get("__name__") or getattr(function, "__module__", None)
        reached = Reachable(Ownership(module), list(frameworks.values()))
        with _undisturbed(frameworks):
            reached.walk(function, tuple(args), dict(kwargs))
            for _, contents in reached.contents:
                if isinstance(contents, SetContents):
                    contents.restore(_same)
            return cls(reached, frameworks)

    def restore(self) -> None:
        """Put everything back; may be called any number of times.

        Raises:
            StateError: Something was changed in a way that cannot be undone; the message names the way to it.
        """
        frameworks = loaded_frameworks()
        fresh = {thing: make() for thing, make in self._reached.renewals.items()}

        def renewed(thing: object) -> object:
            return fresh.get(id(thing), thing)

        with _undisturbed(frameworks):
            for trail, contents in self._contents:
                try:
                    contents.restore(renewed if fresh else _same)
                except Exception as error:
                    raise StateError("state-unrestored", _UNRESTORED.format(trail.text(), error)) from error
            rng.restore(self._generators)
            for name, state in frameworks.items():
                state.restore_generators(self._framework_generators.get(name))


_UNRESTORED = (
    "{} cannot be put back as it was before the call: {}. A second call would not start where the first one did. "
    "Create it inside the function, or check the whole program with `determinism check -- python ...`, which starts "
    "new processes."
)


def _same(thing: object) -> object:
    return thing


@contextmanager
def _undisturbed(frameworks: Mapping[str, FrameworkState]) -> Iterator[None]:
    with ExitStack() as stack:
        for state in frameworks.values():
            stack.enter_context(state.undisturbed())
        yield
