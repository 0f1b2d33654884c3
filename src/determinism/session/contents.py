"""What Python's own containers hold, copied so that it can be put back into the same objects."""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Protocol

Renewed = Callable[[object], object]
"""Gives the object to put where another one was: itself, unless only a fresh copy can stand for it."""


class Order(IntEnum):
    """When contents are put back: what is hashed needs its attributes first, those may need their memory."""

    MEMORY = 0
    ATTRIBUTES = 1
    HASHED = 2


class Contents(Protocol):
    """The copied contents of one object."""

    @property
    def order(self) -> int:
        """When these contents are put back, as `Order` counts."""

    @property
    def template(self) -> str:
        """How an error names a child, given its key."""

    @property
    def rebinds(self) -> bool:
        """Whether putting back also puts back which objects are held, not only what they hold."""

    def children(self) -> Iterable[tuple[object, object]]:
        """The objects held, each with its key."""

    def restore(self, renewed: Renewed) -> None:
        """Put the contents back into the same object."""


class Parts:
    """The objects that an immutable object holds."""

    order: int = Order.MEMORY
    rebinds: bool = False

    def __init__(self, template: str, parts: Iterable[tuple[object, object]]) -> None:
        """Take the way errors name a part, and the parts with their keys."""
        self.template = template
        self._parts = tuple(parts)

    def children(self) -> Iterable[tuple[object, object]]:
        """The parts."""
        return self._parts

    def restore(self, renewed: Renewed) -> None:
        """Leave everything as it is."""


class DictContents:
    """The keys and values of a dict, in order."""

    order: int = Order.HASHED
    template: str = "[{}]"
    rebinds: bool = True

    def __init__(self, thing: dict[Any, Any]) -> None:
        """Copy the contents of `thing`."""
        self._thing = thing
        self._kind: Any = OrderedDict if isinstance(thing, OrderedDict) else dict
        self._items = list(self._kind.items(thing))

    def children(self) -> Iterable[tuple[object, object]]:
        """Keys and values."""
        for key, value in self._items:
            yield key, key
            yield key, value

    def restore(self, renewed: Renewed) -> None:
        """Put keys and values back."""
        refill(self._thing, [(key, renewed(value)) for key, value in self._items], self._kind)


def refill(thing: dict[Any, Any], items: Sequence[tuple[Any, Any]], kind: Any = dict) -> None:
    """Make a dict hold these items in this order; a dict that does is not touched."""
    present = kind.items(thing)
    if len(present) == len(items) and all(
        key is old_key and value is old_value for (key, value), (old_key, old_value) in zip(present, items, strict=True)
    ):
        return
    kind.clear(thing)
    for key, value in items:
        kind.__setitem__(thing, key, value)


class FactoryContents(Parts):
    """What a defaultdict makes its values with."""

    order: int = Order.ATTRIBUTES

    def __init__(self, thing: defaultdict[Any, Any]) -> None:
        """Keep the factory of `thing`."""
        super().__init__(".{}", [("default_factory", thing.default_factory)])
        self._thing = thing
        self._factory = thing.default_factory

    def restore(self, renewed: Renewed) -> None:
        """Put the factory back."""
        self._thing.default_factory = self._factory


class ListContents:
    """The items of a list."""

    order: int = Order.ATTRIBUTES
    template: str = "[{}]"
    rebinds: bool = True

    def __init__(self, thing: list[Any]) -> None:
        """Copy the items of `thing`."""
        self._thing = thing
        self._items = list(list.__iter__(thing))

    def children(self) -> Iterable[tuple[object, object]]:
        """The items."""
        return enumerate(self._items)

    def restore(self, renewed: Renewed) -> None:
        """Put the items back."""
        list.__setitem__(self._thing, slice(None), map(renewed, self._items))


class DequeContents:
    """The items of a deque."""

    order: int = Order.ATTRIBUTES
    template: str = "[{}]"
    rebinds: bool = True

    def __init__(self, thing: deque[Any]) -> None:
        """Copy the items of `thing`."""
        self._thing = thing
        self._items = list(deque.__iter__(thing))

    def children(self) -> Iterable[tuple[object, object]]:
        """The items."""
        return enumerate(self._items)

    def restore(self, renewed: Renewed) -> None:
        """Put the items back."""
        deque.clear(self._thing)
        deque.extend(self._thing, map(renewed, self._items))


class SetContents:
    """The members of a set.

    A set's iteration order follows from its history. It is rebuilt in one way each time, so that every call finds the
    same order, and `Snapshot.take` rebuilds it once before the first.
    """

    order: int = Order.HASHED
    template: str = "{{{}}}"
    rebinds: bool = False

    def __init__(self, thing: set[Any]) -> None:
        """Copy the members of `thing`."""
        self._thing = thing
        self._members = list(set.__iter__(thing))

    def children(self) -> Iterable[tuple[object, object]]:
        """The members."""
        return ((member, member) for member in self._members)

    def restore(self, renewed: Renewed) -> None:
        """Put the members back."""
        set.clear(self._thing)
        for member in self._members:
            set.add(self._thing, member)


class BytesContents(Parts):
    """The items of a bytearray or an array."""

    order: int = Order.MEMORY

    def __init__(self, thing: bytearray | array[Any]) -> None:
        """Copy the items of `thing`."""
        super().__init__("", ())
        self._thing: Any = thing
        self._copy: Any = thing[:]

    def restore(self, renewed: Renewed) -> None:
        """Put the items back; an unchanged length also works while a buffer is exported."""
        self._thing[:] = self._copy
