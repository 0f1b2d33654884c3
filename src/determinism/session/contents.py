"""What Python's own containers and objects hold, copied so that it can be put back into the same objects."""

from __future__ import annotations

import copyreg
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from types import CellType, FunctionType
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


# What names are bound to: an object's attributes, a class's, a module's, and the cells of a closure.

_MISSING = object()


class AttributeContents:
    """The attributes in an object's `__dict__`."""

    order: int = Order.ATTRIBUTES
    template: str = ".{}"
    rebinds: bool = True

    def __init__(self, thing: Any, attributes: dict[str, Any]) -> None:
        """Copy the attributes of `thing`."""
        self._thing = thing
        self._attributes = attributes
        self._items = list(dict.items(attributes))

    def children(self) -> Iterable[tuple[object, object]]:
        """Names and values."""
        return self._items

    def restore(self, renewed: Renewed) -> None:
        """Put the attributes back, past any `__setattr__` of the class."""
        if self._thing.__dict__ is not self._attributes:
            object.__setattr__(self._thing, "__dict__", self._attributes)
        refill(self._attributes, [(name, renewed(value)) for name, value in self._items])


class SlotContents:
    """The attributes that a class keeps in `__slots__`."""

    order: int = Order.ATTRIBUTES
    template: str = ".{}"
    rebinds: bool = True

    def __init__(self, thing: object) -> None:
        """Copy the slots of `thing`."""
        self._thing = thing
        self._values: list[tuple[str, Any, object]] = []
        for name in slot_names(type(thing)):
            member = _slot_member(type(thing), name)
            if member is not None:
                try:
                    self._values.append((name, member, member.__get__(thing)))
                except AttributeError:
                    self._values.append((name, member, _MISSING))

    def children(self) -> Iterable[tuple[object, object]]:
        """Names and values."""
        return ((name, value) for name, _, value in self._values)

    def restore(self, renewed: Renewed) -> None:
        """Put the slots back, past any `__setattr__` of the class."""
        for _, member, value in self._values:
            if value is not _MISSING:
                member.__set__(self._thing, renewed(value))
                continue
            try:
                member.__delete__(self._thing)
            except AttributeError:
                continue


def slot_names(kind: type[Any]) -> tuple[str, ...]:
    """The names in the `__slots__` of a class and its bases, mangled where they are private."""
    return tuple(copyreg._slotnames(kind))  # type: ignore[attr-defined]


def _slot_member(kind: type[Any], name: str) -> Any:
    for base in kind.__mro__:
        member = vars(base).get(name)
        if member is not None and hasattr(member, "__set__") and hasattr(member, "__objclass__"):
            return member
    return None


class NamespaceContents:
    """Some names of a class or module, or the globals that a function names."""

    order: int = Order.ATTRIBUTES
    rebinds: bool = True

    def __init__(self, namespace: dict[str, Any], names: Iterable[str], template: str) -> None:
        """Copy what `names` are bound to."""
        self.template = template
        self._namespace = namespace
        self._values = {name: namespace.get(name, _MISSING) for name in names}

    def children(self) -> Iterable[tuple[object, object]]:
        """Names and values."""
        return ((name, value) for name, value in self._values.items() if value is not _MISSING)

    def restore(self, renewed: Renewed) -> None:
        """Bind the names again, and unbind those that were not bound."""
        for name, value in self._values.items():
            if value is _MISSING:
                self._namespace.pop(name, None)
            elif self._namespace.get(name, _MISSING) is not (wanted := renewed(value)):
                self._namespace[name] = wanted


class ClassContents:
    """The attributes of a class."""

    order: int = Order.ATTRIBUTES
    template: str = ".{}"
    rebinds: bool = True

    def __init__(self, thing: type[Any]) -> None:
        """Copy the attributes of `thing`."""
        self._thing = thing
        self._values = _class_attributes(thing)

    def children(self) -> Iterable[tuple[object, object]]:
        """Names and values, and the bases."""
        yield from self._values.items()
        for base in self._thing.__bases__:
            yield "__bases__", base

    def restore(self, renewed: Renewed) -> None:
        """Put the attributes back."""
        present = _class_attributes(self._thing)
        for name in present.keys() - self._values.keys():
            type.__delattr__(self._thing, name)
        for name, value in self._values.items():
            if present.get(name, _MISSING) is not (wanted := renewed(value)):
                type.__setattr__(self._thing, name, wanted)


def _class_attributes(thing: type[Any]) -> dict[str, Any]:
    slots = thing.__dict__.get("__slots__", ())
    hidden = {slots} if isinstance(slots, str) else set(slots)
    return {
        name: value
        for name, value in vars(thing).items()
        if name not in hidden
        and name != "_abc_impl"
        and (not (name.startswith("__") and name.endswith("__")) or isinstance(value, FunctionType))
    }


class CellContents:
    """The variable of an enclosing function that a closure shares."""

    order: int = Order.ATTRIBUTES
    template: str = ".closure['{}']"
    rebinds: bool = True

    def __init__(self, cell: CellType, name: str) -> None:
        """Keep what `cell` holds."""
        self._cell = cell
        self._name = name
        try:
            self._value: object = cell.cell_contents
        except ValueError:
            self._value = _MISSING

    def children(self) -> Iterable[tuple[object, object]]:
        """The value, if there is one yet."""
        return () if self._value is _MISSING else ((self._name, self._value),)

    def restore(self, renewed: Renewed) -> None:
        """Put the value back."""
        if self._value is not _MISSING:
            self._cell.cell_contents = renewed(self._value)
        else:
            del self._cell.cell_contents


class DefaultContents(Parts):
    """The default values of a function's parameters."""

    order: int = Order.ATTRIBUTES

    def __init__(self, function: FunctionType) -> None:
        """Keep the defaults of `function`."""
        self._function = function
        self._defaults = function.__defaults__
        self._keyword_defaults = function.__kwdefaults__
        positional = list(enumerate(self._defaults or ()))
        super().__init__(".defaults[{}]", [*positional, ("keyword", self._keyword_defaults)])

    def restore(self, renewed: Renewed) -> None:
        """Put the defaults back."""
        if self._function.__defaults__ is not self._defaults:
            self._function.__defaults__ = self._defaults
        if self._function.__kwdefaults__ is not self._keyword_defaults:
            self._function.__kwdefaults__ = self._keyword_defaults
