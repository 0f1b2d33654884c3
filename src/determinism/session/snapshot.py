"""Copies of everything that a call can reach, so that a second call starts from the same state as the first.

From the function, its arguments and the globals that it names, this walks containers, objects, closures and the user's
own classes and functions; their contents are later restored in place. An object that cannot be copied is refused with
the path to it, except in the closures of libraries, where it is left to the library.
"""

from __future__ import annotations

import argparse
import contextvars
import datetime
import dis
import enum
import functools
import gc
import io
import logging
import numbers
import operator
import pathlib
import random
import re
import struct
import sys
import threading
import types
import uuid
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, partialmethod
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple, TypeVar

from determinism import rng
from determinism.errors import StateError
from determinism.frameworks.snapshots import Contents, FrameworkState, loaded_frameworks
from determinism.session.contents import (
    attribute_contents,
    bytes_contents,
    cache_contents,
    cell_contents,
    class_contents,
    context_variable_contents,
    default_contents,
    deque_contents,
    dict_contents,
    list_contents,
    namespace_contents,
    numpy_contents,
    pickled_contents,
    python_generator_contents,
    set_contents,
    slot_contents,
    slot_names,
)
from determinism.source_files import Owner, owner_of_module

# Objects that cannot be copied, whatever they hold.

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
"""Locks; those of a library's objects guard them between calls and hold no state."""

_POSITION = "whose position cannot be copied"
_RUNNING = "which runs on its own and cannot be copied"
_OUTSIDE = "which is connected to something outside this function and cannot be copied"

_BY_TYPE: tuple[tuple[type[Any] | tuple[type[Any], ...], str], ...] = (
    ((GeneratorType, AsyncGeneratorType, CoroutineType, FrameType), _POSITION),
    (_LOCKS, "which cannot be copied"),
    (threading.Thread, _RUNNING),
)
_BY_NAME = {
    "asyncio.events.AbstractEventLoop": _RUNNING,
    "concurrent.futures._base.Executor": _RUNNING,
    "concurrent.futures._base.Future": _RUNNING,
    "multiprocessing.connection._ConnectionBase": _OUTSIDE,
    "multiprocessing.managers.BaseManager": _OUTSIDE,
    "multiprocessing.managers.BaseProxy": _OUTSIDE,
    "multiprocessing.pool.Pool": _RUNNING,
    "multiprocessing.process.BaseProcess": _RUNNING,
    "multiprocessing.queues.Queue": _OUTSIDE,
    "multiprocessing.queues.SimpleQueue": _OUTSIDE,
    "multiprocessing.shared_memory.SharedMemory": _OUTSIDE,
    "multiprocessing.synchronize.Condition": _OUTSIDE,
    "multiprocessing.synchronize.Event": _OUTSIDE,
    "multiprocessing.synchronize.SemLock": _OUTSIDE,
    "multiprocessing.sharedctypes.SynchronizedBase": _OUTSIDE,
    "mmap.mmap": _OUTSIDE,
    "_socket.socket": _OUTSIDE,
    "subprocess.Popen": _RUNNING,
    "sqlite3.Connection": _OUTSIDE,
    "tempfile._TemporaryFileWrapper": _POSITION,
    "torch.utils.data.dataloader._BaseDataLoaderIter": _POSITION,
}


def _refusal(thing: object) -> str | None:
    """Return why an object cannot be copied, whatever it holds; None if it may be."""
    if isinstance(thing, io.IOBase):
        return None if isinstance(thing, io.StringIO | io.BytesIO) or _is_standard_stream(thing) else _POSITION
    for kind, reason in _BY_TYPE:
        if isinstance(thing, kind):
            return reason
    for base in type(thing).__mro__:
        named = _BY_NAME.get(f"{base.__module__}.{base.__qualname__}")
        if named is not None:
            return named
    return None


def _is_standard_stream(thing: object) -> bool:
    """Whether `thing` is a standard stream, on which no result depends."""
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return any(thing is stream or thing is getattr(stream, "buffer", stream) for stream in streams)


def _hidden_reason(thing: object) -> str:
    """Return why an object cannot be copied whose state only C code sees."""
    if hasattr(type(thing), "__next__"):
        return _POSITION
    return "which keeps its state where Python cannot copy it"


def _refused(thing: object, path: str, reason: str) -> StateError:
    """Return the error that names an object that cannot be copied."""
    kind = type(thing)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    finding = f"{path} is of type {name}, {reason}"
    error = StateError(
        "state-uncopyable",
        f"{finding}: a second call would not start from the same state as the first. Create it inside the function, "
        "or pass what it is made from and create it there; or check the whole program with `determinism check -- "
        "python ...`, which starts new processes.",
    )
    error.finding = finding
    return error


# How the contents of each type are copied.

ATOMIC = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, object})
"""Types whose instances hold no other objects; subclasses do not count."""

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
        "pyarrow.lib.Array", "pyarrow.lib.ChunkedArray", "pyarrow.lib.DataType", "pyarrow.lib.Field", "pyarrow.lib.Scalar",
        "pyarrow.lib.Schema", "pyarrow.lib._Tabular", "jax._src.random.prng.PRNGKeyArray", "jax._src.prng.PRNGKeyArray",
        "triton.runtime.jit.KernelInterface", "numpy.generic", "numpy.dtype", "numpy.ufunc", "rich.console.Console",
        "torch._ops.OperatorBase", "torch._ops.OpOverloadPacket", "torch.library.Library", "_json.Scanner", "_json.Encoder",
        "_collections._tuplegetter",
    }
)  # fmt: skip


_HOSTS = frozenset({"_pytest", "pluggy", "xdist", "execnet", "IPython", "ipykernel", "traitlets", "zmq", "comm"})
"""Packages that run the user's code and are not part of its state: a restored test session would forget its results."""


def contents_of(thing: Any, frameworks: Sequence[FrameworkState]) -> list[Contents] | None:
    """Copy what an object holds; None if it keeps its state where it cannot be copied."""
    kind = type(thing)
    if issubclass(kind, _STATELESS) or _is_stateless_by_name(kind) or _is_standard_stream(thing):
        return []
    for wrapper, parts in _WRAPPERS:
        if issubclass(kind, wrapper):
            return parts(thing)
    own = _own_contents(thing, frameworks)
    if own is None or any(part.is_whole for part in own):
        return own
    return [*own, *_attributes(thing)]


def _own_contents(thing: Any, frameworks: Sequence[FrameworkState]) -> list[Contents] | None:
    """Copy what an object holds besides its attributes; None if that is hidden."""
    kind = type(thing)
    if issubclass(kind, _VALUES):
        return []
    for base, copied in _CONTAINERS:
        if issubclass(kind, base):
            return copied(thing)
    for copy_special in (numpy_contents, *(framework.contents_of for framework in frameworks)):
        special = copy_special(thing)
        if special is not None:
            return list(special)
    if not _hides_state(kind):
        return []
    if hasattr(kind, "__next__"):
        return None
    pickled = pickled_contents(thing)
    return [] if pickled is None and _is_value(thing) else pickled


def _attributes(thing: Any) -> list[Contents]:
    attributes = getattr(thing, "__dict__", None)
    contents = [attribute_contents(thing, attributes)] if type(attributes) is dict else []
    return [*contents, slot_contents(thing)] if slot_names(type(thing)) else contents


def _is_value(thing: object) -> bool:
    """Whether an object of a C type is a value: compared by content, or pickled by name as a singleton."""
    kind = type(thing)
    if kind.__hash__ is not None and kind.__hash__ is not object.__hash__:
        return True
    try:
        return isinstance(thing.__reduce_ex__(2), str)
    except Exception:
        return False


def _hides_state(kind: type[Any]) -> bool:
    """Whether instances are larger than their attributes account for; pickle makes the same test."""
    managed_dict = 1 << 4
    pointers = len(slot_names(kind)) + (kind.__weakrefoffset__ > 0)
    pointers += kind.__dictoffset__ != 0 and not kind.__flags__ & managed_dict
    return kind.__basicsize__ > object.__basicsize__ + pointers * struct.calcsize("P") or kind.__itemsize__ != 0


def _is_stateless_by_name(kind: type[Any]) -> bool:
    if kind.__module__.partition(".")[0] in _HOSTS:
        return True
    return any(f"{base.__module__}.{base.__qualname__}" in _STATELESS_NAMES for base in kind.__mro__)


def _parts(*names: str) -> Callable[[Any], list[Contents]]:
    return lambda thing: [Contents(children=[(name, getattr(thing, name)) for name in names])]


def _sequence(thing: Any) -> list[Contents]:
    items = tuple.__iter__(thing) if isinstance(thing, tuple) else thing
    return [Contents(children=list(enumerate(items)), template="[{}]")]


def _referents(thing: Any) -> list[Contents]:
    return [Contents(children=[("mapping", held) for held in gc.get_referents(thing)], template=".<{}>")]


# Objects that only wrap another: their attributes, if any, are those of the wrapped object.
_WRAPPERS: tuple[tuple[type[Any] | tuple[type[Any], ...], Callable[[Any], list[Contents]]], ...] = (
    (types.MethodType, _parts("__self__", "__func__")),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _parts("__self__")),
    ((staticmethod, classmethod), _parts("__func__")),
    (property, _parts("fget", "fset", "fdel")),
    (cached_property, _parts("func")),
    (partialmethod, _parts("func", "args", "keywords")),
    (partial, lambda thing: [*_parts("func", "args", "keywords")(thing), *_attributes(thing)]),
    (weakref.ref, lambda thing: [Contents(children=[("()", thing())], template="{}")]),
    (weakref.ProxyTypes, lambda thing: [Contents(children=[("", thing.__repr__.__self__)], template="{}")]),
    ((types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items())), _referents),
    (memoryview, _parts("obj")),
)
_CONTAINERS: tuple[tuple[type[Any] | tuple[type[Any], ...], Callable[[Any], list[Contents] | None]], ...] = (
    (dict, dict_contents),
    (list, list_contents),
    ((tuple, frozenset), _sequence),
    (set, set_contents),
    (deque, deque_contents),
    ((bytearray, array), bytes_contents),
    (random.Random, python_generator_contents),
    (contextvars.ContextVar, context_variable_contents),
    (BaseException, _parts("args", "__cause__", "__context__")),
    (threading.local, lambda thing: []),
    ((io.StringIO, io.BytesIO), pickled_contents),
)


# The names that a function's code refers to, including its nested functions.

_GLOBAL = frozenset(
    {
        *("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"),
        # Used at the top level of a module or notebook cell; in a class body they may be the class's own names.
        *("LOAD_NAME", "STORE_NAME", "DELETE_NAME"),
    }
)
_IMPORT = "IMPORT_NAME"


@dataclass(frozen=True, slots=True)
class _CodeNames:
    """Names grouped by how they are looked up."""

    globals: frozenset[str]
    imports: frozenset[str]
    """Modules that the code imports when it runs."""
    attributes: frozenset[str]
    """All other names: attributes, including those of modules."""


@lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> _CodeNames:
    """Return the names that a code object and those nested in it refer to."""
    globals_: set[str] = set()
    imports: set[str] = set()
    attributes: set[str] = set()
    for part in _with_nested(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in _GLOBAL:
                globals_.add(instruction.argval)
            elif instruction.opname == _IMPORT:
                imports.add(instruction.argval)
        attributes.update(part.co_names)
    return _CodeNames(frozenset(globals_), frozenset(imports), frozenset(attributes))


def imported_names(code: CodeType) -> frozenset[str]:
    """Return the modules that a code object imports when it runs.

    Args:
        code: Code of a function or a cell.
    """
    return _names_in(code).imports


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(constant for constant in part.co_consts if isinstance(constant, CodeType))


# Which code is the user's.

_FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "numpy", "determinism"})


class _Ownership:
    """Distinguishes user code from libraries; the package of the checked function always counts as user code."""

    def __init__(self, module: str | None) -> None:
        package = (module or "").partition(".")[0]
        self._package = "" if package in _FRAMEWORKS or package in sys.stdlib_module_names else package

    def is_user_function(self, function: FunctionType) -> bool:
        """Whether a function is the user's."""
        module, file = function.__globals__.get("__name__"), function.__code__.co_filename
        if file.startswith("<") and not file.startswith("<frozen"):
            return not isinstance(module, str) or self.is_user_module(module)
        return self._in_package(module) or owner_of_module(str(module), file) is Owner.USER

    def is_user_module(self, name: str) -> bool:
        """Whether the module with this name is the user's."""
        if self._in_package(name):
            return True
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str):
            return owner_of_module(name, file) is Owner.USER
        # Built-in modules, namespace packages and interactive sessions have no file; C types may name no real module.
        return name == "__main__" or (
            name not in sys.modules and "." not in name and name not in sys.stdlib_module_names
        )

    def is_user_class(self, kind: type[Any]) -> bool:
        """Whether a class is the user's."""
        module = kind.__dict__.get("__module__", "builtins")
        return isinstance(module, str) and self.is_user_module(module)

    def _in_package(self, module: object) -> bool:
        return isinstance(module, str) and bool(self._package) and module.partition(".")[0] == self._package


# The path from a call to an object that it reaches.


class Trail(NamedTuple):
    """The path to an object, for messages."""

    parent: Trail | None
    template: str
    key: object

    def text(self) -> str:
        """Return the path as an expression."""
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


# Finds every object that a call can reach and copies its contents.

_NAMESPACES = (SimpleNamespace, argparse.Namespace)
"""Classes of the standard library whose objects hold only what the user puts there."""
_CACHE_WRAPPER = type(functools.lru_cache(lambda: None))


def _globals_of(function: Any) -> dict[str, Any] | None:
    """Return the globals of the Python function inside a callable: a method, partial, decorated function or object."""
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
    in_library: bool
    """Whether a library's object holds it."""


class _Reachable:
    """The copied contents of every visited object, in no particular order."""

    def __init__(self, ownership: _Ownership, frameworks: Sequence[FrameworkState]) -> None:
        self.contents: list[tuple[Trail, Contents]] = []
        self._ownership = ownership
        self._frameworks = frameworks
        self._seen: dict[int, Any] = {}
        """Visited objects by id; holding them keeps the ids from being reused."""
        self._namespaces: set[tuple[int, str]] = set()
        self._waiting: list[_Found] = []
        self._inside_library: list[_Found] = []
        self._root_globals: dict[str, Any] | None = None

    def walk(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        named: Mapping[str, object],
    ) -> None:
        """Copy everything that a call of `function` with these arguments can reach, and the objects in `named`.

        Raises:
            StateError: A reachable object cannot be copied; the message names the path to it.
        """
        self._root_globals = _globals_of(function)
        self._expand(Trail(None, "", ""), Contents(children=[("", function)], template="{}"))
        self._expand(Trail(None, "args", ""), Contents(children=enumerate(args), template="[{}]"))
        self._expand(Trail(None, "kwargs", ""), Contents(children=kwargs.items(), template="[{}]"))
        self._expand(Trail(None, "", ""), Contents(children=named.items(), template="{}"))
        while self._waiting or self._inside_library:
            lenient = not self._waiting
            self._visit((self._inside_library if lenient else self._waiting).pop(), lenient)

    def _visit(self, found: _Found, lenient: bool) -> None:
        thing, trail = found.thing, found.trail
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, FunctionType):
            self._enter_function(thing, trail)
        elif isinstance(thing, type):
            if self._ownership.is_user_class(thing):
                self._add(trail, class_contents(thing), lenient)
        elif isinstance(thing, _CACHE_WRAPPER):
            self._enter_cache(thing, trail, lenient)
        elif not (_is_namespace(thing) or (found.in_library and isinstance(thing, _LOCKS))):
            self._enter_object(found, lenient)

    def _enter_object(self, found: _Found, lenient: bool) -> None:
        thing, trail = found.thing, found.trail
        reason = _refusal(thing)
        contents = None if reason else contents_of(thing, self._frameworks)
        if contents is None:
            if not lenient:
                raise _refused(thing, trail.text(), reason or _hidden_reason(thing))
            return
        kind = type(thing)
        user_class = self._ownership.is_user_class(kind)
        owns = not user_class and not isinstance(thing, _NAMESPACES)
        passes_on = found.in_library and isinstance(thing, BuiltinFunctionType)
        for part in contents:
            self._add(trail, part, lenient, in_library=passes_on or (owns and part.are_attributes))
        if user_class:
            self._expand(trail, Contents(children=[("__class__", kind)]), lenient=lenient)

    def _enter_function(self, function: FunctionType, trail: Trail) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        mine = self._ownership.is_user_function(function)
        for name, cell in cells:
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self._add(trail, cell_contents(cell, name), lenient=not mine)
        if not mine:
            self._expand(trail, Contents(children=function.__dict__.items()), in_library=True, lenient=True)
            return
        self._add(trail, default_contents(function), lenient=False)
        self._add(trail, attribute_contents(function, function.__dict__), lenient=False)
        self._enter_globals(function)

    def _enter_globals(self, function: FunctionType) -> None:
        names = _names_in(function.__code__)
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
            self._add(None, namespace_contents(namespace, new, template), lenient=False)
        for name in names:
            value = namespace.get(name)
            if isinstance(value, ModuleType):
                self._enter_module(value, attributes)

    def _enter_module(self, module: ModuleType, attributes: frozenset[str]) -> None:
        if self._ownership.is_user_module(module.__name__):
            present = [name for name in attributes if (id(vars(module)), name) not in self._namespaces]
            if present:
                self._enter_namespace(vars(module), present, attributes)

    def _enter_cache(self, wrapper: Any, trail: Trail, lenient: bool) -> None:
        inner = wrapper.__wrapped__
        self._expand(trail, Contents(children=[("__wrapped__", inner)]), lenient=lenient)
        if isinstance(inner, FunctionType) and self._ownership.is_user_function(inner):
            self._add(trail, cache_contents(wrapper), lenient)

    def _add(self, trail: Trail | None, contents: Contents, lenient: bool, in_library: bool = False) -> None:
        self.contents.append((trail or Trail(None, contents.template, "..."), contents))
        self._expand(trail, contents, in_library, lenient)

    def _expand(self, trail: Trail | None, contents: Contents, in_library: bool = False, lenient: bool = False) -> None:
        waiting = self._inside_library if lenient else self._waiting
        for key, thing in contents.children:
            if type(thing) not in ATOMIC:
                waiting.append(_Found(thing, Trail(trail, contents.template, key), in_library))


def _is_namespace(thing: object) -> bool:
    """Whether `thing` is the namespace of a module, which is not part of the state, as the module is not."""
    if type(thing) is not dict:
        return False
    module = sys.modules.get(name) if isinstance(name := thing.get("__name__"), str) else None
    return module is not None and vars(module) is thing


class Snapshot:
    """The state that a call depends on, at one moment.

    Objects are restored in place: references to them remain valid.
    """

    def __init__(self, reached: _Reachable, frameworks: Mapping[str, FrameworkState]) -> None:
        """Use `take` instead."""
        self._contents = sorted(reached.contents, key=lambda entry: entry[1].order)
        self._generators = GeneratorSnapshot(frameworks)

    @classmethod
    def take(
        cls,
        function: Callable[..., object],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        named: Mapping[str, object] | None = None,
    ) -> Snapshot:
        """Copy the contents of everything that a call of `function` with these arguments can reach.

        Args:
            function: The function to call.
            args: Its arguments.
            kwargs: Its keyword arguments.
            named: Objects that it can reach in other ways, by their names in messages.

        Raises:
            StateError: A reachable object cannot be copied; the message names the path to it.
        """
        frameworks = loaded_frameworks()
        module = (_globals_of(function) or {}).get("__name__") or getattr(function, "__module__", None)
        reached = _Reachable(_Ownership(module), list(frameworks.values()))
        with _undisturbed(frameworks):
            reached.walk(function, tuple(args), dict(kwargs), named or {})
            return cls(reached, frameworks)

    def restore(self) -> None:
        """Restore everything; may be called any number of times.

        Raises:
            StateError: A change cannot be undone; the message names the path to the object.
        """
        frameworks = loaded_frameworks()
        with _undisturbed(frameworks):
            for trail, contents in self._contents:
                try:
                    contents.restore()
                except Exception as error:
                    raise _unrestored(trail.text(), error) from error
            self._generators.put_back(frameworks)


class GeneratorSnapshot:
    """The states of the global random generators of Python, NumPy and the loaded frameworks."""

    def __init__(self, frameworks: Mapping[str, FrameworkState]) -> None:
        """Use `take` instead."""
        self._generators = rng.capture()
        self._of_frameworks = {name: state.capture_generators() for name, state in frameworks.items()}

    @classmethod
    def take(cls) -> GeneratorSnapshot:
        """Copy the states of the generators."""
        frameworks = loaded_frameworks()
        with _undisturbed(frameworks):
            return cls(frameworks)

    def restore(self) -> None:
        """Restore the states; may be called any number of times."""
        frameworks = loaded_frameworks()
        with _undisturbed(frameworks):
            self.put_back(frameworks)

    def put_back(self, frameworks: Mapping[str, FrameworkState]) -> None:
        """Restore the states when recording is already suspended."""
        rng.restore(self._generators)
        for name, state in frameworks.items():
            state.restore_generators(self._of_frameworks.get(name))


def _unrestored(path: str, error: Exception) -> StateError:
    refused = StateError("state-unrestored", _UNRESTORED.format(path, error))
    refused.finding = f"{path} cannot be restored to its state before the call: {error}"
    return refused


_UNRESTORED = (
    "{} cannot be restored to its state before the call: {}. A second call would not start from the same state as "
    "the first. Create it inside the function, or check the whole program with `determinism check -- python ...`, "
    "which starts new processes."
)


@contextmanager
def _undisturbed(frameworks: Mapping[str, FrameworkState]) -> Iterator[None]:
    with ExitStack() as stack:
        for state in frameworks.values():
            stack.enter_context(state.undisturbed())
        yield
