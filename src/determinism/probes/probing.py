"""What rewritten code calls. Each of these gives back what it got, unless that is a source."""

from __future__ import annotations

import builtins
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from determinism.probes import probe_names
from determinism.probes.loading import is_rewritten
from determinism.probes.set_order import Elements, elements_of, in_order, is_set_type, order_text, sorting_attribute
from determinism.probes.source_function import SourceFunction
from determinism.probes.source_table import SourceTable
from determinism.probes.stable_text import FIRST_USES, stable_text
from determinism.probes.use import Probing, Use

SET_ORDER = "set-order"

_IGNORES_ORDER = frozenset(
    {"union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint", "append",
     "appendleft", "insert", "remove", "discard", "index", "count", "get", "setdefault", "put", "put_nowait", "copy",
     "deepcopy", "debug", "info", "warning", "intersection_update", "difference_update", "set.update", "set.add",
     "symmetric_difference_update", "__contains__", "hash", "id", "submit", "apply_async", "add_argument", "setattr",
     "wait", "as_completed"}
)  # fmt: skip
"""Functions that store a set, or to which its order does not matter; those that several types have with their type."""
_HOLDERS = frozenset({"partial", "SimpleNamespace", "Namespace", "partialmethod"})
"""Types whose objects keep a set as it is."""
_AMBIGUOUS = frozenset({"add", "update", "pop"})

_PLAIN = (str, int, float, bytes, bool)

_Callee = Any


class Probes:
    """The probes of this process."""

    def __init__(self, probing: Probing, table: SourceTable) -> None:
        self._probing = probing
        self._table = table
        self._no_sets: set[type] = {list, tuple, str, int, float, dict, range, type(None), bool}
        self._callees: dict[str, _Callee] = {}
        """What is called at a site; never an object of the program, which would be kept alive."""

    def install(self) -> None:
        """Make the probes known to rewritten code, under names that no program has."""
        for name, probe in self.by_name().items():
            setattr(builtins, name, probe)

    def by_name(self) -> dict[str, Any]:
        """The functions that rewritten code calls.

        They are functions and not methods, because compilers that trace Python can be told about these.
        """
        imported, by_identity, method_names = self._table.imported, self._table.by_identity, self._table.method_names
        callees, no_sets, bound = self._callees, self._no_sets, self._bound

        def call(site: str, function: Any) -> Any:
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
                if not imported and id(function) not in by_identity:
                    return function
            elif _is_builtin(kind):
                name = function.__name__
                callees[site] = function.__qualname__ if name in _AMBIGUOUS else name
            elif kind is MethodType:
                callees[site] = getattr(function, "__code__", None)
            else:
                callees[site] = function if issubclass(kind, type) else kind
            return call(site, function)

        def iterate(site: str, value: Any) -> Any:
            try:
                return value if type(value) in no_sets else self._iterated(site, value)
            except Exception:
                return value

        def argument(site: str, value: Any, name: str = "0") -> Any:
            try:
                return value if type(value) in no_sets else self._argument(site, value, name)
            except Exception:
                return value

        return {
            probe_names.CALL: call,
            probe_names.CALL_WITH: call_with,
            probe_names.ITERATE: iterate,
            probe_names.ARGUMENT: argument,
            probe_names.MEMBER: self._member_probe(),
            probe_names.MEMBERS: self._members_probe(),
            probe_names.KEY: self._key_probe(call),
        }

    def _bound(self, site: str, source: SourceFunction, function: Any) -> Any:
        use = Use(self._probing, site, source.source)
        way = source.way

        def bound(*arguments: Any, **keywords: Any) -> Any:
            return way(use, function, arguments, keywords)

        return bound

    def _iterated(self, site: str, value: Any) -> Any:
        if not self._is_set(value):
            return value
        use = Use(self._probing, site, SET_ORDER)
        return value if use.is_unordered else _ordered(use, value)

    def _argument(self, site: str, value: Any, name: str) -> Any:
        if not self._is_set(value) or self._stays_as_it_is(self._callees.get(site), value, name):
            return value
        use = Use(self._probing, site, SET_ORDER)
        return value if use.is_unordered else _ordered(use, value, argument=name)

    def _is_set(self, value: Any) -> bool:
        kind = type(value)
        if is_set_type(kind):
            return True
        if len(self._no_sets) < 10_000:
            self._no_sets.add(kind)
        return False

    def _stays_as_it_is(self, callee: _Callee, value: Any, name: str) -> bool:
        """Whether what is called does not iterate a set that it gets, or does so in code that is probed itself."""
        if isinstance(callee, str):
            return callee in _IGNORES_ORDER or (callee == "sum" and {type(one) for one in value} <= {int, bool})
        if isinstance(callee, type):
            if callee.__name__ in _HOLDERS or (callee is dict and not name.isdigit()):
                return True
            callee = getattr(getattr(callee, "__init__", None), "__code__", None)
            # A data class stores what it gets.
            if callee is None or callee.co_filename == "<string>":
                return callee is not None
        return callee is not None and (callee.co_name in _IGNORES_ORDER or is_rewritten(callee.co_filename))

    @staticmethod
    def _member_probe() -> Any:
        def member(_: str, value: Any) -> Any:
            _use(value)
            return value

        return member

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
                return map(_used, values)
            except TypeError:
                return values

        return members

    @staticmethod
    def _key_probe(call: Any) -> Any:
        def key(site: str, value: Any) -> Any:
            return call(site, value) if callable(value) else value

        return key


def _is_builtin(kind: type) -> bool:
    """Whether objects of a type are functions written in C; those that know their class are of a type derived from it."""
    return kind is BuiltinFunctionType or kind.__base__ is BuiltinFunctionType


def _ordered(use: Use, value: Any, **details: Any) -> Any:
    """A set as it is iterated: itself, or its elements in a fixed order."""
    try:
        result = in_order(value) if use.is_fixed else value
    except Exception:
        # It was changed by another thread meanwhile.
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
    if type(value) in _PLAIN:
        return
    try:
        if stable_text(value) is None:
            FIRST_USES.use(value)
    except Exception:
        return


def _used(value: Any) -> Any:
    _use(value)
    return value


__all__ = ["SET_ORDER", "Elements", "Probes"]
