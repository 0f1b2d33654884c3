"""State with rules of its own when a call is repeated: arrays, generators, frameworks; and what cannot be copied."""

from __future__ import annotations

import copy
import dis
import importlib
import importlib.util
import io
import itertools
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, Protocol, cast

from determinism.errors import StateError
from determinism.frameworks.registry import SNAPSHOTS
from determinism.session.contents import Contents, Order, Parts, Renewed

# The elements of NumPy arrays, copied so that they can be put back into the same memory.


def array_contents(thing: Any) -> list[Contents] | None:
    """The elements of an array, and the array that it is a view of; None if `thing` is no array."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(thing, numpy.ndarray):
        return None
    if isinstance(thing.base, numpy.ndarray):
        return [_LayoutContents(thing), Parts(".{}", [("base", thing.base)])]
    if not thing.flags.writeable and thing.base is not None:
        return []
    return [_ArrayContents(thing, numpy)]


class _LayoutContents(Parts):
    """The dtype, shape and strides of an array, which assignments to its attributes change."""

    order: int = Order.ATTRIBUTES

    def __init__(self, thing: Any) -> None:
        super().__init__("", ())
        self._thing = thing
        self._layout = (thing.dtype, thing.shape, thing.strides)
        self._writeable = bool(thing.flags.writeable)

    def restore(self, renewed: Renewed) -> None:
        thing = self._thing
        if (thing.dtype, thing.shape, thing.strides) != self._layout:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                thing.dtype, thing.shape, thing.strides = self._layout
        if thing.flags.writeable != self._writeable:
            thing.flags.writeable = self._writeable


class _ArrayContents(_LayoutContents):
    """The elements of an array that is no view of another."""

    order: int = Order.MEMORY
    rebinds: bool = False

    def __init__(self, thing: Any, numpy: Any) -> None:
        super().__init__(thing)
        self.template = "[{}]"
        self._numpy = numpy
        self._copy = numpy.array(thing.view(numpy.ndarray), copy=True, order="K")

    def children(self) -> Iterable[tuple[object, object]]:
        return enumerate(self._copy.ravel().tolist()) if self._copy.dtype.hasobject else ()

    def restore(self, renewed: Renewed) -> None:
        thing = self._thing
        if not thing.flags.writeable:
            thing.flags.writeable = True
        if thing.nbytes != self._copy.nbytes:
            items = self._copy.nbytes // max(thing.itemsize, 1)
            self._numpy.ndarray.resize(thing, (items,), refcheck=False)
        writeable, self._writeable = self._writeable, True
        super().restore(renewed)
        self._writeable = writeable
        self._numpy.copyto(thing.view(self._numpy.ndarray), self._copy)
        if not writeable:
            thing.flags.writeable = False


# The names that a function's code refers to, its nested functions included.

_GLOBAL = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_IMPORT = "IMPORT_NAME"


@dataclass(frozen=True, slots=True)
class CodeNames:
    """Names by the way they are looked up."""

    globals: frozenset[str]
    imports: frozenset[str]
    """Modules that the code imports when it runs."""
    attributes: frozenset[str]
    """Every other name: attributes, among them those of modules."""


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> CodeNames:
    """The names that a code object and those nested in it refer to."""
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
    return CodeNames(frozenset(globals_), frozenset(imports), frozenset(attributes))


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(constant for constant in part.co_consts if isinstance(constant, CodeType))


# Counting iterators: they cannot be set back, but a fresh one that goes on equally can be put in their place.

_REPEATABLE: tuple[type[Any], ...] = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    type(iter("")),
    type(iter(b"")),
)


def is_counter(thing: object) -> bool:
    """Whether `thing` may be replaced by a fresh copy."""
    return type(thing) in (itertools.count, itertools.cycle)


def fresh_copies(thing: object) -> tuple[Callable[[], object], list[object]] | None:
    """What makes an iterator that goes on as `thing` would now, and the objects it yields; None if nothing can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return _count_copies(thing) if type(thing) is itertools.count else _cycle_copies(thing)
        except (TypeError, ValueError, AttributeError):
            return None  # Python 3.14 no longer copies iterators.


def _count_copies(thing: Any) -> tuple[Callable[[], object], list[object]]:
    kind, arguments = thing.__reduce__()[:2]
    return lambda: kind(*arguments), []


def _cycle_copies(thing: Any) -> tuple[Callable[[], object], list[object]] | None:
    _, (source,), (passed, ended) = thing.__reduce__()
    if type(source) not in _REPEATABLE:
        return None
    start = copy.copy(source)
    seen = list(passed)

    def fresh() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            cycle: Any = itertools.cycle(copy.copy(start))
            cycle.__setstate__((list(seen), ended))
        return cycle

    return fresh, [*seen, *start.__reduce__()[1]]


# The state files of the frameworks that the program has loaded.


class FrameworkState(Protocol):
    """What a framework's module of `SNAPSHOTS` offers."""

    def contents_of(self, thing: Any) -> Sequence[Contents] | None:
        """The contents of a tensor or another object of the framework's own; None if `thing` is none."""

    def capture_generators(self) -> Any:
        """Copy the states of the framework's global generators."""

    def restore_generators(self, states: Any) -> None:
        """Put them back; None stands for a framework that was not loaded when the others were copied."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """Copy and put back without the framework recording it."""


def loaded_frameworks() -> dict[str, FrameworkState]:
    """The snapshot modules of loaded frameworks, by the framework's name; none is imported for it."""
    return {
        name: cast(FrameworkState, importlib.import_module(module))
        for name, module in SNAPSHOTS.items()
        if name in sys.modules
    }


# Objects whose state is hidden, and that hand out a copy of it and take one back.

_MISSING = object()


class HandedState(Parts):
    """The state that an object gave."""

    order: int = Order.MEMORY

    def __init__(self, give: Callable[[], Any], take: Callable[[Any], object], parts: Iterable[Any] = ()) -> None:
        """Take the functions that give the state and take it back, and the objects that are held besides."""
        super().__init__(".{}", parts)
        self._take = take
        self._state = give()

    def restore(self, renewed: Renewed) -> None:
        """Hand the state back."""
        self._take(self._state)


def python_generator_contents(thing: random.Random) -> list[Contents]:
    """The state of a generator of Python's; one that reads from the operating system has none."""
    return [] if isinstance(thing, random.SystemRandom) else [HandedState(thing.getstate, thing.setstate)]


def numpy_generator_contents(thing: Any) -> list[Contents] | None:
    """The state of a generator of NumPy's; None if `thing` is none."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    if isinstance(thing, numpy_random.Generator):
        return [Parts(".{}", [("bit_generator", thing.bit_generator)])]
    if isinstance(thing, numpy_random.RandomState):
        return [HandedState(lambda: thing.get_state(legacy=False), thing.set_state)]
    if isinstance(thing, numpy_random.BitGenerator):
        seeds = getattr(thing, "seed_seq", None)
        return [HandedState(lambda: thing.state, lambda state: setattr(thing, "state", state), [("seed_seq", seeds)])]
    return None


def context_variable_contents(thing: ContextVar[Any]) -> list[Contents]:
    """The value of a context variable in this context."""

    def take(value: object) -> None:
        if value is not _MISSING:
            thing.set(value)
        elif thing.get(_MISSING) is not _MISSING:
            raise ValueError("it had no value before, and a value cannot be removed again")

    value = thing.get(_MISSING)
    return [HandedState(lambda: value, take, [("get()", None if value is _MISSING else value)])]


def pickled_contents(thing: Any) -> list[Contents] | None:
    """The state that an object gives to pickle and can take back in place; None if it has no such state."""
    take = getattr(thing, "__setstate__", None)
    if take is None:
        return None
    try:
        reduced = thing.__reduce_ex__(2)
    except Exception:
        return None
    if not isinstance(reduced, tuple) or len(reduced) < 3 or reduced[2] is None:
        return None
    return [HandedState(lambda: reduced[2], take, [("__getstate__()", reduced[2])])]


def is_value(thing: object) -> bool:
    """Whether an object of a C type is a value: compared by content, or the only one of its name."""
    kind = type(thing)
    if kind.__hash__ is not None and kind.__hash__ is not object.__hash__:
        return True
    try:
        return isinstance(thing.__reduce_ex__(2), str)
    except Exception:
        return False


LOCKS = (type(threading.Lock()), type(threading.RLock()))
"""Locks; those that belong to an object of a library guard it between calls, and hold nothing."""

_POSITION = "whose position cannot be copied"
_RUNNING = "which goes on by itself and cannot be copied"
_OUTSIDE = "which is connected to something outside this function and cannot be copied"

_BY_TYPE: tuple[tuple[type[Any] | tuple[type[Any], ...], str], ...] = (
    ((GeneratorType, AsyncGeneratorType, CoroutineType, FrameType), _POSITION),
    (LOCKS, "which cannot be copied"),
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


def refusal(thing: object) -> str | None:
    """Why an object cannot be copied, whatever it holds; None if it may be."""
    if isinstance(thing, io.IOBase):
        return None if isinstance(thing, io.StringIO | io.BytesIO) or is_standard_stream(thing) else _POSITION
    for kind, reason in _BY_TYPE:
        if isinstance(thing, kind):
            return reason
    for base in type(thing).__mro__:
        named = _BY_NAME.get(f"{base.__module__}.{base.__qualname__}")
        if named is not None:
            return named
    return None


def is_standard_stream(thing: object) -> bool:
    """Whether `thing` is where the program prints or reads, which no result depends on."""
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return any(thing is stream or thing is getattr(stream, "buffer", stream) for stream in streams)


def hidden_reason(thing: object) -> str:
    """Why an object whose state only C code sees cannot be copied."""
    if hasattr(type(thing), "__next__"):
        return _POSITION
    return "which keeps its state where Python cannot copy it"


def refused(thing: object, path: str, reason: str) -> StateError:
    """The error that names an object which cannot be copied."""
    kind = type(thing)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return StateError(
        "state-uncopyable",
        f"{path} is of type {name}, {reason}: a second call would not start where the first one did. Create it inside "
        "the function, or pass what it is made from and make it freshly there; or check the whole program with "
        "`determinism check -- python ...`, which starts new processes.",
    )
