"""Texts for values that are the same in every run, and numbers for objects that have no such text.

Nothing of the user's code is called for it: the texts of objects are made of their attributes.
"""

from __future__ import annotations

import enum
import itertools
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

_BY_REPR = frozenset({str, bytes, bytearray, int, float, complex, bool, type(None), type(...), range})
_BY_REPR_OF_MODULES = frozenset(
    {"datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone", "decimal.Decimal",
     "fractions.Fraction", "uuid.UUID", "pathlib.PurePosixPath", "pathlib.PosixPath", "pathlib._local.PurePosixPath",
     "pathlib._local.PosixPath"}
)  # fmt: skip
"""Of modules that are not imported for this: the program's folder may have one of the same name."""
_NAMED = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)
_MOST_PARTS = 10_000
_MOST_NUMBERS = 1_000_000
_DEPTH = 5


def stable_text(value: Any, depth: int = _DEPTH) -> str | None:
    """A text that tells what a value is, and that has nothing of this run in it; None if there is none.

    Args:
        value: Any object.
        depth: How many objects within objects are looked at.
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
        # It is told apart by being itself, not by what it holds.
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
    """A text for what can be told of a value, and whether that is all of it.

    Args:
        value: Any object.
    """
    text = stable_text(value)
    if text is not None:
        return text, True
    if type(value) not in (tuple, list):
        return None, False
    parts = [stable_text(part) for part in value]
    return (None if not any(parts) else "|".join(part or "?" for part in parts)), False


class FirstUses:
    """Numbers objects that have no stable text in the order in which they were first used."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._next = itertools.count()

    def number(self, value: Any) -> int | None:
        """The number of an object; None if it has none."""
        known = self._numbers.get(id(value))
        return known[1] if known is not None and known[0]() is value else None

    def use(self, value: Any) -> int | None:
        """The number of an object, which gets one if it has none; None if it cannot be told when it is gone."""
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
    """Where a value stands among others: by its type, then by the order of first use, then by its text.

    Args:
        value: An element of a set.

    Returns:
        None if neither its text nor its first use is known.
    """
    name = type(value).__qualname__
    text = stable_text(value)
    if text is not None:
        return name, 0, text
    number = FIRST_USES.number(value)
    return None if number is None else (name, number, "")
