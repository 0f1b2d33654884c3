"""The order in which a set is iterated: what it is in this run, and one that is the same in every run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from enum import Enum
from pathlib import PurePath
from typing import Any
from weakref import WeakSet

from determinism.probes.stable_text import rank

_MOST_ELEMENTS = 100_000
_PLAIN = (str, bytes, int, float, bool)
_BY_ADDRESS = ("torch", "tensorflow", "jax")
"""Frameworks whose tensors and variables have a hash of their own, which is their address."""
_TOLD_BY_TEXT = (tuple, PurePath, Enum, type(None))


class Elements(Enum):
    """What the elements of a set are, which decides how they can be brought into order."""

    SORTABLE = "sortable"
    """`sorted` gives one order."""
    TEXT = "text"
    """Their texts give one order."""
    HASHED = "hashed"
    """Objects with hashes of their own, which may rest on strings or on addresses."""
    OBJECTS = "objects"
    """They are told apart only by being themselves; the order in which they were put in is the only one."""


def is_set_type(kind: type) -> bool:
    """Whether objects of a type are iterated in the order of a hash table."""
    return getattr(kind, "__iter__", None) in (set.__iter__, frozenset.__iter__, WeakSet.__iter__)


def elements_of(values: Iterable[Any]) -> Elements:
    """What the elements of a set are."""
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
    """Whether the text of a value, or of what it holds, is the same in every run."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or value is None or isinstance(value, PurePath | Enum)


def sorting_attribute(values: Iterable[Any]) -> str | None:
    """The first attribute by which all objects of a user's class can be sorted into one order; None if there is none.

    Args:
        values: The elements of a set.
    """
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
    """A text that tells in which order the elements come; None if elements cannot be told apart in another run.

    Args:
        values: The elements.
        attribute: One that tells them apart, if there is one.
    """
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

    What can be sorted is sorted; what has a text is sorted by that; objects by an attribute that
    tells them apart, or by their type and what they hold, or, where they are told apart only by being themselves, in the
    order in which they were first put into a set. Those of which not even that is known stay where
    they are.
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
