"""The probes that rewritten code calls. Each returns the value it received, unless that is a source."""

from __future__ import annotations

import builtins
import enum
import itertools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any
from weakref import WeakSet

from determinism.digest import digest_bytes, digest_text
from determinism.import_hook import after_import
from determinism.probes import rewrite
from determinism.probes.loading import is_rewritten
from determinism.probes.notes import Notes
from determinism.probes.origins import Origins
from determinism.probes.rewrite import parsed
from determinism.run_spec import ProbeRequest

# Texts for values, the same in every run, and numbers for objects that have no such text.
#
# This calls none of the user's code: the text of an object is built from its attributes.

_BY_REPR = frozenset({str, bytes, bytearray, int, float, complex, bool, type(None), type(...), range})
_BY_REPR_OF_MODULES = frozenset(
    {"datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone", "decimal.Decimal",
     "fractions.Fraction", "uuid.UUID", "pathlib.PurePosixPath", "pathlib.PosixPath", "pathlib._local.PurePosixPath",
     "pathlib._local.PosixPath"}
)  # fmt: skip
"""By name: importing these modules could load one of the same name from the program's folder."""
_NAMED = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)
_MOST_PARTS = 10_000
_MOST_NUMBERS = 1_000_000
_DEPTH = 5


def stable_text(value: Any, depth: int = _DEPTH) -> str | None:
    """A text that identifies a value and is the same in every run; None if there is none.

    Args:
        value: Any object.
        depth: How many levels of nesting to look at.
    """
    kind = type(value)
    if kind in _BY_REPR or f"{kind.__module__}.{kind.__qualname__}" in _BY_REPR_OF_MODULES:
        return f"{kind.__name__}:{value!r}"
    if depth == 0:
        return None
    if kind in (list, tuple, deque):
        return _joined(kind.__name__, value, depth)
    if kind in (set, frozenset):
        parts = [stable_text(part, depth - 1) for part in itertools.islice(value, _MOST_PARTS)]
        return None if None in parts else f"{kind.__name__}({','.join(sorted(map(str, parts)))})"
    if kind is dict:
        return _joined("dict", itertools.chain.from_iterable(value.items()), depth)
    if isinstance(value, enum.Enum):
        return f"{kind.__qualname__}.{value._name_}"
    if isinstance(value, _NAMED):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', None) or value.__name__}"
    return _object_text(value, kind, depth)


def _object_text(value: Any, kind: type, depth: int) -> str | None:
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "generic") and issubclass(kind, numpy.generic):
        return f"{kind.__name__}:{value!r}"
    if issubclass(kind, tuple):
        return _joined(kind.__qualname__, tuple.__iter__(value), depth)
    if kind.__hash__ is object.__hash__ or kind.__module__.partition(".")[0] in ("torch", "tensorflow", "jax", "numpy"):
        # Its identity distinguishes it, not its content.
        return None
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    parts = [part for name in sorted(attributes) for part in (name, attributes[name])]
    return _joined(f"{kind.__module__}.{kind.__qualname__}", parts, depth) if parts else None


def _joined(name: str, values: Iterable[Any], depth: int) -> str | None:
    parts = []
    for value in itertools.islice(values, _MOST_PARTS):
        part = stable_text(value, depth - 1)
        if part is None:
            return None
        parts.append(part)
    return f"{name}({','.join(parts)})"


def partial_text(value: Any) -> tuple[str | None, bool]:
    """A text for as much of a value as can be described, and whether that is all of it."""
    text = stable_text(value)
    if text is not None:
        return text, True
    if type(value) not in (tuple, list):
        return None, False
    parts = [stable_text(part) for part in value]
    return (None if not any(parts) else "|".join(part or "?" for part in parts)), False


class FirstUses:
    """Numbers for objects that have no stable text, in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._next = itertools.count()

    def number(self, value: Any) -> int | None:
        """The number of an object; None if it has none."""
        known = self._numbers.get(id(value))
        return known[1] if known is not None and known[0]() is value else None

    def use(self, value: Any) -> int | None:
        """The number of an object, assigned on first use; None if it allows no weak reference, so that its end is unknown."""
        number = self.number(value)
        if number is not None or len(self._numbers) >= _MOST_NUMBERS:
            return number
        identity = id(value)
        try:
            reference = weakref.ref(value, lambda gone: self._forget(identity, gone))
        except TypeError:
            return None
        number = next(self._next)
        self._numbers[identity] = reference, number
        return number

    def _forget(self, identity: int, gone: weakref.ref[Any]) -> None:
        known = self._numbers.get(identity)
        if known is not None and known[0] is gone:
            del self._numbers[identity]


FIRST_USES = FirstUses()


def rank(value: Any) -> tuple[str, int, str] | None:
    """The sort key of a value: its type, then its order of first use, then its text.

    Returns:
        None if neither its text nor its first use is known.
    """
    name = type(value).__qualname__
    text = stable_text(value)
    if text is not None:
        return name, 0, text
    number = FIRST_USES.number(value)
    return None if number is None else (name, number, "")


# The iteration order of a set: that of this run, and one that is the same in every run.

_MOST_ELEMENTS = 100_000
_PLAIN = (str, bytes, int, float, bool)
_BY_ADDRESS = ("torch", "tensorflow", "jax")
"""Frameworks whose tensors and variables define their own hash, which is their address."""
_TOLD_BY_TEXT = (tuple, PurePath, Enum, type(None))


class Elements(Enum):
    """The kind of elements in a set, which decides how they can be ordered."""

    SORTABLE = "sortable"
    """`sorted` always returns the same order."""
    TEXT = "text"
    """Sorting by text always returns the same order."""
    HASHED = "hashed"
    """Objects with their own hashes, which may depend on strings or on addresses."""
    OBJECTS = "objects"
    """Objects that only their identity distinguishes; their only order is that of insertion."""


def is_set_type(kind: type) -> bool:
    """Whether objects of a type iterate in the order of a hash table."""
    return getattr(kind, "__iter__", None) in (set.__iter__, frozenset.__iter__, WeakSet.__iter__)


def elements_of(values: Iterable[Any]) -> Elements:
    """The kind of elements in a set."""
    kinds = {type(value) for value in values}
    if kinds <= {int, float, bool} or (len(kinds) == 1 and kinds <= {str, bytes}):
        return Elements.SORTABLE
    if not all(kind in _PLAIN or issubclass(kind, _TOLD_BY_TEXT) for kind in kinds) or not all(map(_is_plain, values)):
        return Elements.OBJECTS if any(map(_is_hashed_by_address, kinds)) else Elements.HASHED
    try:
        sorted(values)
    except TypeError:
        return Elements.TEXT
    return Elements.SORTABLE


def _is_hashed_by_address(kind: Any) -> bool:
    return kind.__hash__ is object.__hash__ or kind.__module__.partition(".")[0] in _BY_ADDRESS


def _is_plain(value: Any) -> bool:
    """Whether the text of a value, contents included, is the same in every run."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or value is None or isinstance(value, PurePath | Enum)


def sorting_attribute(values: Iterable[Any]) -> str | None:
    """The first attribute that sorts objects of the user's classes into a unique order; None if there is none."""
    held: list[dict[str, Any]] = []
    for value in itertools.islice(values, _MOST_ELEMENTS):
        kind = type(value)
        if kind.__module__.partition(".")[0] in ("torch", "numpy", "builtins"):
            return None
        try:
            held.append(object.__getattribute__(value, "__dict__"))
        except AttributeError:
            return None
    for name in held[0] if held else ():
        kinds = {type(attributes.get(name)) for attributes in held}
        if kinds in ({int}, {str}) and not name.startswith("_") and len({one[name] for one in held}) == len(held):
            return str(name)
    return None


def order_text(values: Iterable[Any], attribute: str | None = None) -> str | None:
    """A text for the order of the elements; None if another run could not distinguish them."""
    parts = []
    for value in itertools.islice(values, _MOST_ELEMENTS):
        if attribute is not None:
            parts.append(f"{attribute}:{object.__getattribute__(value, '__dict__')[attribute]!r}")
            continue
        kind = type(value)
        if kind in _PLAIN:
            parts.append(f"{kind.__name__}:{value!r}")
            continue
        found = rank(value)
        if found is None:
            return None
        parts.append(repr(found))
    return "\n".join(parts)


def in_order(values: Iterable[Any]) -> list[Any]:
    """The elements in an order that is the same in every run.

    Sortable elements are sorted; elements with a text are sorted by it. Objects are sorted by an attribute that
    distinguishes them, else by type and content, or, if only their identity distinguishes them, by when they were first
    put into a set. If not even that is known, they keep their relative order.
    """
    result = list(values)
    elements = elements_of(result)
    if elements is Elements.SORTABLE:
        return sorted(result)
    if elements is Elements.TEXT:
        return sorted(result, key=str)
    name = sorting_attribute(result)
    if name is not None:
        return sorted(result, key=lambda value: object.__getattribute__(value, "__dict__")[name])
    ranks = {id(value): rank(value) for value in result}
    if any(one is None for one in ranks.values()):
        return sorted(result, key=lambda value: ranks[id(value)] or (type(value).__qualname__, 0, ""))
    return sorted(result, key=lambda value: ranks[id(value)] or ("", 0, ""))


# One use of a source at one site: it can be noted, and its value can be fixed.

_CLOCK = "clock"


@dataclass(frozen=True)
class Use:
    """One use of a source at a site."""

    probing: Probing
    site: str
    source: str

    @property
    def is_fixed(self) -> bool:
        """Whether its value is to be fixed."""
        return self.probing.is_fixed(self.site, self.source)

    @property
    def is_unordered(self) -> bool:
        """Whether the result goes straight into a function that ignores order."""
        return parsed(self.site).is_unordered

    def of(self, source: str) -> Use:
        """The use of another source at the same site."""
        return replace(self, source=source)

    def note(self, text: Callable[[], str | None], **details: Any) -> None:
        """Note this use; see `Notes.take`."""
        if self.probing.notes is not None:
            self.probing.notes.take(self.site, self.source, text, **details)


class Probing:
    """What this process is to note and to fix."""

    def __init__(self, request: ProbeRequest) -> None:
        self.notes = None if request.notes is None else Notes(request.notes)
        self._everywhere = frozenset(request.fixed_sources)
        self._at_lines = frozenset((one.file, one.line, one.source) for one in request.fixed)
        self._clock_files = frozenset(one.file for one in request.fixed if one.source == _CLOCK)
        self._known: dict[tuple[str, str], bool] = {}

    def is_fixed(self, site: str, source: str) -> bool:
        """Whether the value of a source is to be fixed at a site."""
        key = (site, source)
        known = self._known.get(key)
        if known is None:
            place = parsed(site)
            at_line = (place.original_file, place.line, source) in self._at_lines
            # The program must never compare a time of a fixed clock with one of the real clock.
            is_beside = source == _CLOCK and place.original_file in self._clock_files
            known = at_line or is_beside or source in self._everywhere
            self._known[key] = known
        return known


# A source function, and what happens when it is called.

Function = Callable[..., Any]
Way = Callable[[Use, Function, tuple[Any, ...], dict[str, Any]], Any]
"""Calls a source function, notes the result and returns it, or returns a fixed value if that is requested."""


@dataclass(frozen=True)
class SourceFunction:
    """A function through which a program takes a value from outside."""

    source: str
    """Identifier of the source."""
    module: str
    """The module that has the function."""
    name: str
    """Its name in the module; for a method, with its class."""
    way: Way
    among: Collection[Any] | None = None
    """For a method: the only objects on which it is a source; None for all objects."""


def functions(
    source: str, way: Way, module: str, names: str, among: Collection[Any] | None = None
) -> tuple[SourceFunction, ...]:
    """Source functions of one module that are handled in the same way.

    Args:
        source: Identifier of the source.
        way: How a call of one is handled.
        module: The module.
        names: Their names, separated by spaces.
        among: For methods: the only objects on which they are sources; None for all objects.
    """
    return tuple(SourceFunction(source, module, name, way, among) for name in names.split())


def replacing(fix: Callable[[Any], Any], text: Callable[[Any], str | None] = repr) -> Way:
    """A way for functions that run in any case; where their results are to be fixed, `fix` makes others of them.

    Args:
        fix: Gets the result.
        text: Returns a text for the result that the program gets.
    """

    def way(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        result = function(*arguments, **keywords)
        if use.is_fixed:
            result = fix(result)
        use.note(lambda: text(result))
        return result

    return way


# Answers that arrive in parts, from a running program or for a query, belong to the line that asked, not the one that reads.


class Answers:
    """Objects that yield an answer in parts, each with the use that asked and the details to note."""

    def __init__(self) -> None:
        self.asked: weakref.WeakKeyDictionary[Any, tuple[Use, dict[str, Any]]] = weakref.WeakKeyDictionary()

    def expect(self, giver: Any, use: Use, details: dict[str, Any]) -> None:
        """Register an object that will yield an answer; one that allows no weak reference is left out."""
        try:
            self.asked[giver] = use, details
        except TypeError:
            return

    def parts(self, giver: Any) -> Iterator[Any]:
        """Yield the parts of an answer and note each; in a fixed order if that is requested."""
        use, details = self.asked[giver]
        for part in _sorted_parts(iter(giver)) if use.is_fixed else giver:
            use.note(lambda part=part: answer_text(part), **details)  # type: ignore[misc]
            yield part


_MOST_SORTED = 1_000_000
"""How many parts are sorted together: another program's output may be endless, but memory is not."""


def _sorted_parts(parts: Iterator[Any]) -> Iterator[Any]:
    while block := list(itertools.islice(parts, _MOST_SORTED)):
        yield from in_fixed_order(block)


ANSWERS = Answers()


def answer_text(answer: Any) -> str | None:
    """A text for an answer that reveals none of its content; None if there is none."""
    if isinstance(answer, str | bytes):
        return f"answer {(digest_text(answer) if isinstance(answer, str) else digest_bytes(answer)).hex()}"
    rows = (
        [tuple(one) if type(one).__name__ == "Row" else one for one in answer] if isinstance(answer, list) else answer
    )
    text = stable_text(tuple(rows) if type(rows).__name__ == "Row" else rows)
    return None if text is None else f"answer {digest_text(text).hex()}"


def in_fixed_order(answer: Any) -> Any:
    """An answer with its lines or rows in an order that is the same in every run, however they arrived."""
    if isinstance(answer, str | bytes):
        newline: Any = "\n" if isinstance(answer, str) else b"\n"
        end = newline if answer.endswith(newline) else newline[:0]
        return newline.join(sorted(answer[: len(answer) - len(end)].split(newline))) + end
    if isinstance(answer, list):
        return sorted(answer, key=lambda part: str(answer_text(part)))
    return answer


# Recognizes a source by the function object that is called, not by its name.
#
# Functions are looked up once their module has been imported; this imports nothing.

_WRAPPERS = {"torch._dynamo": "torch"}
"""Modules whose import replaces functions of another module with wrappers: `torch.manual_seed`, when the first optimizer
is made (PyTorch 2.13, `torch/_dynamo/__init__.py`)."""


class SourceTable:
    """The sources that exist in this process."""

    def __init__(self, functions: Iterable[SourceFunction]) -> None:
        """Take the source functions, whose modules need not be imported."""
        self._by_module: dict[str, list[SourceFunction]] = {}
        for function in functions:
            self._by_module.setdefault(function.module, []).append(function)
        self.imported: list[types.ModuleType] = []
        """Imported modules that are not yet looked up: another module may wrap their functions first."""
        self.by_identity: dict[int, SourceFunction] = {}
        self._methods: dict[str, list[tuple[Any, SourceFunction]]] = {}
        self.method_names: set[str] = set()
        """Names of methods written in C: each access makes a new object, so they have no lasting identity."""
        self._kept: list[Any] = []

    def start(self) -> None:
        """Watch for the import of the modules."""
        for name in self._by_module:
            after_import(name, self.imported.append, _ignore)
        for name in _WRAPPERS:
            after_import(name, self._look_again, _ignore)

    def _look_again(self, wrapper: types.ModuleType) -> None:
        self.imported.append(sys.modules[_WRAPPERS[wrapper.__name__]])

    def resolve(self) -> None:
        """Look up the functions of the modules imported since the last call."""
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
        # The functions of Cython are bound as those of Python are.
        is_python = isinstance(found, types.FunctionType | types.MethodType | type) or hasattr(found, "func_globals")
        if owner is module or is_python:
            # It is kept alive so that no other object gets its identity.
            self._kept.append(found)
            self.by_identity[id(found)] = function
            # Each access to a class method makes a new object.
            if isinstance(found, types.MethodType) and isinstance(owner, type):
                self.by_identity[id(found.__func__)] = function
        else:
            self.method_names.add(name)
            self._methods.setdefault(name, []).append((owner, function))

    def method(self, name: str, holder: Any) -> SourceFunction | None:
        """The source function behind a method written in C; None if the method is not a source.

        Args:
            name: Its name.
            holder: The object that it is bound to.
        """
        for owner, function in self._methods.get(name, ()):
            kind = type(holder)
            is_owned = holder is owner or owner in kind.__mro__ or (issubclass(kind, type) and owner in holder.__mro__)
            if is_owned and (function.among is None or holder in function.among):
                return function
        return None


def _ignore(_: str) -> None:
    return


SET_ORDER = "set-order"

_IGNORES_ORDER = frozenset(
    {"union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint", "append",
     "appendleft", "insert", "remove", "discard", "index", "count", "get", "setdefault", "put", "put_nowait", "copy",
     "deepcopy", "debug", "info", "warning", "intersection_update", "difference_update", "set.update", "set.add",
     "symmetric_difference_update", "__contains__", "hash", "id", "submit", "apply_async", "add_argument", "setattr",
     "wait", "as_completed"}
)  # fmt: skip
"""Functions that store a set or ignore its order; names that several types share include the type."""
_HOLDERS = frozenset({"partial", "SimpleNamespace", "Namespace", "partialmethod"})
"""Types whose objects keep a set as it is."""
_AMBIGUOUS = frozenset({"add", "update", "pop"})
_ITERATING = (list, tuple, dict, set, frozenset, enumerate, zip)
_MAY_ANSWER = ("_io", "os", "sqlite3")
"""Modules of the types that may yield an answer in parts."""

_PLAIN_ARGUMENTS = (str, int, float, bytes, bool)

_Callee = Any


class Probes:
    """The probes of this process."""

    def __init__(self, probing: Probing, table: SourceTable, origins: Origins | None = None) -> None:
        self._probing = probing
        self._table = table
        self._origins = origins
        self._no_sets: set[type] = {list, tuple, str, int, float, dict, range, type(None), bool}
        self._callees: dict[str, _Callee] = {}
        """The callee at each site; never an object of the program, which this would keep alive."""

    def install(self) -> None:
        """Make the probes available to rewritten code, under names that no program uses."""
        for name, probe in self.by_name().items():
            setattr(builtins, name, probe)

    def by_name(self) -> dict[str, Any]:
        """The functions that rewritten code calls.

        They are functions, not methods, so that compilers that trace Python can be told about them.
        """
        imported, by_identity, method_names = self._table.imported, self._table.by_identity, self._table.method_names
        callees, bound, origins = self._callees, self._bound, self._origins

        def call(site: str, function: Any) -> Any:
            if origins is not None:
                origins.called(site, function)
            if imported:
                self._table.resolve()
            source = by_identity.get(id(function))
            if source is None:
                kind = type(function)
                if kind is MethodType:
                    source = by_identity.get(id(function.__func__))
                elif _is_builtin(kind) and function.__name__ in method_names:
                    source = self._table.method(function.__name__, function.__self__)
                if source is None:
                    return function
            return bound(site, source, function)

        def call_with(site: str, function: Any) -> Any:
            kind = type(function)
            if kind is FunctionType:
                callees[site] = function.__code__
                if not imported and id(function) not in by_identity and origins is None:
                    return function
            elif _is_builtin(kind):
                name = function.__name__
                callees[site] = function.__qualname__ if name in _AMBIGUOUS else name
            elif kind is MethodType:
                callees[site] = getattr(function, "__code__", None)
            else:
                callees[site] = function if issubclass(kind, type) else kind
            return call(site, function)

        def key(site: str, value: Any) -> Any:
            return call(site, value) if callable(value) else value

        return {
            rewrite.CALL: call,
            rewrite.CALL_WITH: call_with,
            rewrite.MEMBER: _member,
            rewrite.MEMBERS: self._members_probe(),
            rewrite.KEY: key,
            rewrite.RESULT: self._result_probe(),
            **self._value_probes(),
        }

    def _value_probes(self) -> dict[str, Any]:
        callees, no_sets, members = self._callees, self._no_sets, self._members_probe()

        def iterate(site: str, value: Any) -> Any:
            try:
                return value if type(value) in no_sets else self._iterated(site, value)
            except Exception:
                return value

        def argument(site: str, value: Any, name: str = "0") -> Any:
            try:
                if callees.get(site) == "set.update":
                    return members(site, value)
                return value if type(value) in no_sets else self._argument(site, value, name)
            except Exception:
                return value

        return {rewrite.ITERATE: iterate, rewrite.ARGUMENT: argument}

    def _bound(self, site: str, source: SourceFunction, function: Any) -> Any:
        use = Use(self._probing, site, source.source)
        way = source.way

        def bound(*arguments: Any, **keywords: Any) -> Any:
            return way(use, function, arguments, keywords)

        return bound

    def _iterated(self, site: str, value: Any) -> Any:
        if not self._is_set(value):
            return _each_part(value)
        use = Use(self._probing, site, SET_ORDER)
        return value if use.is_unordered else _ordered(use, value)

    def _argument(self, site: str, value: Any, name: str) -> Any:
        if not self._is_set(value):
            return _each_part(value) if self._callees.get(site) in _ITERATING else value
        if self._stays_as_it_is(self._callees.get(site), value, name):
            return value
        use = Use(self._probing, site, SET_ORDER)
        return value if use.is_unordered else _ordered(use, value, argument=name)

    def _is_set(self, value: Any) -> bool:
        kind = type(value)
        if is_set_type(kind):
            return True
        # A file may be another program's output.
        if len(self._no_sets) < 10_000 and kind.__module__ not in _MAY_ANSWER:
            self._no_sets.add(kind)
        return False

    def _stays_as_it_is(self, callee: _Callee, value: Any, name: str) -> bool:
        """Whether the callee does not iterate a set that it receives, or does so in code that is probed itself."""
        if isinstance(callee, str):
            return callee in _IGNORES_ORDER or (callee == "sum" and {type(one) for one in value} <= {int, bool})
        if isinstance(callee, type):
            if callee.__name__ in _HOLDERS or (callee is dict and not name.isdigit()):
                return True
            callee = getattr(getattr(callee, "__init__", None), "__code__", None)
            # A data class only stores its arguments.
            if callee is None or callee.co_filename == "<string>":
                return callee is not None
        return callee is not None and (callee.co_name in _IGNORES_ORDER or is_rewritten(callee.co_filename))

    def _result_probe(self) -> Any:
        origins = self._origins
        sites = frozenset() if origins is None else origins.sites

        def result(site: str, value: Any) -> Any:
            if site in sites and origins is not None:
                origins.made(site, value)
            return value

        return result

    def _members_probe(self) -> Any:
        def members(_: str, values: Any) -> Any:
            kind = type(values)
            if kind in (list, tuple, dict):
                for value in values:
                    _use(value)
                return values
            if self._is_set(values) or kind in (str, bytes, range):
                return values
            try:
                return map(partial(_member, ""), values)
            except TypeError:
                return values

        return members


def _is_builtin(kind: type) -> bool:
    """Whether objects of a type are functions written in C; those that know their class are of a derived type."""
    return kind is BuiltinFunctionType or kind.__base__ is BuiltinFunctionType


def _each_part(value: Any) -> Any:
    """The iterable itself, or, for an object that yields an answer in parts, those parts."""
    is_answer = type(value).__module__ in _MAY_ANSWER and value in ANSWERS.asked
    return ANSWERS.parts(value) if is_answer else value


def _ordered(use: Use, value: Any, **details: Any) -> Any:
    """The set itself or, if its order is to be fixed, its elements in that order; the order is noted."""
    try:
        result = in_order(value) if use.is_fixed else value
    except Exception:
        # Another thread changed it in the meantime.
        return value
    use.note(
        lambda: order_text(result, _key_of(value)),
        elements=lambda: elements_of(value).value,
        key=lambda: _key_of(value),
        **details,
    )
    return result


def _key_of(value: Any) -> str | None:
    return sorting_attribute(value) if elements_of(value) in (Elements.OBJECTS, Elements.HASHED) else None


def _use(value: Any) -> None:
    if type(value) in _PLAIN_ARGUMENTS:
        return
    try:
        if stable_text(value) is None:
            FIRST_USES.use(value)
    except Exception:
        return


def _member(_: str, value: Any) -> Any:
    _use(value)
    return value
