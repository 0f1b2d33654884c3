"""Copies of the contents of objects, which can be restored into the same objects.

Each function here takes an object and returns its `Contents`, whose `restore` bypasses the methods of its class.
"""

from __future__ import annotations

import copyreg
import gc
import random
import sys
import warnings
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from types import CellType, FunctionType
from typing import Any

from determinism.frameworks.snapshots import Contents, Order

_MISSING = object()

# Containers.


def dict_contents(thing: dict[Any, Any]) -> list[Contents]:
    """The keys and values of a dict, in order."""
    kind: Any = OrderedDict if isinstance(thing, OrderedDict) else dict
    items = list(kind.items(thing))
    children = ((key, held) for key, value in items for held in (key, value))
    contents = [Contents(lambda: _refill(thing, items, kind), children, "[{}]", Order.HASHED)]
    if isinstance(thing, defaultdict):
        factory = thing.default_factory

        def restore() -> None:
            thing.default_factory = factory

        contents.append(Contents(restore, [("default_factory", factory)], order=Order.ATTRIBUTES))
    return contents


def _refill(thing: dict[Any, Any], items: Sequence[tuple[Any, Any]], kind: Any = dict) -> None:
    """Make a dict hold these items in this order, without touching a dict that already does."""
    present = kind.items(thing)
    if len(present) == len(items) and all(
        key is old_key and value is old_value for (key, value), (old_key, old_value) in zip(present, items, strict=True)
    ):
        return
    kind.clear(thing)
    for key, value in items:
        kind.__setitem__(thing, key, value)


def list_contents(thing: list[Any]) -> list[Contents]:
    """The items of a list."""
    items = list(list.__iter__(thing))
    restore = lambda: list.__setitem__(thing, slice(None), items)  # noqa: E731
    return [Contents(restore, enumerate(items), "[{}]", Order.ATTRIBUTES)]


def deque_contents(thing: deque[Any]) -> list[Contents]:
    """The items of a deque."""
    items = list(deque.__iter__(thing))

    def restore() -> None:
        deque.clear(thing)
        deque.extend(thing, items)

    return [Contents(restore, enumerate(items), "[{}]", Order.ATTRIBUTES)]


def set_contents(thing: set[Any]) -> list[Contents]:
    """The members of a set.

    A set's iteration order depends on its history. The set is rebuilt in the same way here and at each restore, so that
    every call finds the same order.
    """
    members = list(set.__iter__(thing))

    def restore() -> None:
        set.clear(thing)
        for member in members:
            set.add(thing, member)

    restore()
    return [Contents(restore, ((member, member) for member in members), "{{{}}}", Order.HASHED)]


def bytes_contents(thing: bytearray | array[Any]) -> list[Contents]:
    """The items of a bytearray or an array."""
    copied: Any = thing[:]

    def restore() -> None:
        # Works even while a buffer is exported, as long as the length is unchanged.
        thing[:] = copied

    return [Contents(restore)]


def cache_contents(cached: Any) -> Contents:
    """The results that a function with `functools.lru_cache` has kept."""
    before = cached.cache_info()
    if not before.currsize:
        return Contents(cached.cache_clear)
    held = gc.get_referents(cached)
    own = (cached.__dict__, cached.__wrapped__)
    if before.maxsize is None:
        # This kind keeps its results in a plain dict, which is copied like any other.
        return Contents(
            children=[("()", one) for one in held if type(one) is dict and one is not own[0]], template="{}"
        )
    has_cleared = False

    def restore() -> None:
        nonlocal has_cleared
        now = cached.cache_info()
        if now.misses == before.misses and not has_cleared:
            return
        if now.hits > before.hits and not has_cleared:
            raise ValueError("it has kept new results besides those that it had (`cache_clear()` empties it)")
        # None of its earlier results was used.
        cached.cache_clear()
        has_cleared = True

    links = [
        one
        for one in held
        if type(one) is dict and {type(link).__name__ for link in one.values()} == {"_lru_list_elem"}
    ]
    results = [("()", one) for one in held if all(one is not mine for mine in (*own, *links))]
    return Contents(restore, results, "{}")


# The values of names: attributes of objects and classes, names of modules, and the cells of a closure.


def attribute_contents(thing: Any, attributes: dict[str, Any]) -> Contents:
    """The attributes in an object's `__dict__`."""
    items = list(dict.items(attributes))

    def restore() -> None:
        if thing.__dict__ is not attributes:
            object.__setattr__(thing, "__dict__", attributes)
        _refill(attributes, items)

    return Contents(restore, items, order=Order.ATTRIBUTES, are_attributes=True)


def slot_names(kind: type[Any]) -> tuple[str, ...]:
    """The names in the `__slots__` of a class and its bases, mangled if they are private."""
    return tuple(copyreg._slotnames(kind))  # type: ignore[attr-defined]


def slot_contents(thing: object) -> Contents:
    """The attributes that a class keeps in `__slots__`."""
    values: list[tuple[str, Any, object]] = []
    for name in slot_names(type(thing)):
        member = _slot_member(type(thing), name)
        if member is not None:
            try:
                values.append((name, member, member.__get__(thing)))
            except AttributeError:
                values.append((name, member, _MISSING))

    def restore() -> None:
        for _, member, value in values:
            if value is not _MISSING:
                member.__set__(thing, value)
                continue
            try:
                member.__delete__(thing)
            except AttributeError:
                continue

    children = ((name, value) for name, _, value in values if value is not _MISSING)
    return Contents(restore, children, order=Order.ATTRIBUTES)


def _slot_member(kind: type[Any], name: str) -> Any:
    for base in kind.__mro__:
        member = vars(base).get(name)
        if member is not None and hasattr(member, "__set__") and hasattr(member, "__objclass__"):
            return member
    return None


def namespace_contents(namespace: dict[str, Any], names: Iterable[str], template: str) -> Contents:
    """The values of some names of a module, or of the globals that a function names."""
    values = {name: namespace.get(name, _MISSING) for name in names}

    def restore() -> None:
        for name, value in values.items():
            if value is _MISSING:
                namespace.pop(name, None)
            elif namespace.get(name, _MISSING) is not value:
                namespace[name] = value

    children = ((name, value) for name, value in values.items() if value is not _MISSING)
    return Contents(restore, children, template, Order.ATTRIBUTES)


def class_contents(thing: type[Any]) -> Contents:
    """The attributes and bases of a class."""
    values = _class_attributes(thing)

    def restore() -> None:
        present = _class_attributes(thing)
        for name in present.keys() - values.keys():
            type.__delattr__(thing, name)
        for name, value in values.items():
            if present.get(name, _MISSING) is not value:
                type.__setattr__(thing, name, value)

    return Contents(
        restore, [*values.items(), *(("__bases__", base) for base in thing.__bases__)], order=Order.ATTRIBUTES
    )


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


def cell_contents(cell: CellType, name: str) -> Contents:
    """The value of an enclosing function's variable that a closure shares."""
    try:
        value: object = cell.cell_contents
    except ValueError:
        value = _MISSING

    def restore() -> None:
        if value is _MISSING:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    return Contents(restore, [] if value is _MISSING else [(name, value)], ".closure['{}']", Order.ATTRIBUTES)


def default_contents(function: FunctionType) -> Contents:
    """The default values of a function's parameters."""
    defaults, keyword_defaults = function.__defaults__, function.__kwdefaults__

    def restore() -> None:
        if function.__defaults__ is not defaults:
            function.__defaults__ = defaults
        if function.__kwdefaults__ is not keyword_defaults:
            function.__kwdefaults__ = keyword_defaults

    children = [*enumerate(defaults or ()), ("keyword", keyword_defaults)]
    return Contents(restore, children, ".defaults[{}]", Order.ATTRIBUTES)


# Objects with hidden state that can return a copy of it and load it again.


def handed_contents(
    give: Callable[[], Any], take: Callable[[Any], object], children: Iterable[tuple[object, object]] = ()
) -> Contents:
    """The state that an object returns and can load again."""
    state = give()
    return Contents(lambda: take(state), children)


def python_generator_contents(thing: random.Random) -> list[Contents]:
    """The state of a generator of Python; one that reads from the operating system has none."""
    return [] if isinstance(thing, random.SystemRandom) else [handed_contents(thing.getstate, thing.setstate)]


def context_variable_contents(thing: ContextVar[Any]) -> list[Contents]:
    """The value of a context variable in this context."""
    value = thing.get(_MISSING)

    def restore() -> None:
        if value is not _MISSING:
            thing.set(value)
        elif thing.get(_MISSING) is not _MISSING:
            raise ValueError("it had no value before, and a value cannot be removed again")

    return [Contents(restore, [("get()", None if value is _MISSING else value)])]


def pickled_contents(thing: Any) -> list[Contents] | None:
    """The state that an object passes to pickle and can load in place; None if it has no such state."""
    take = getattr(thing, "__setstate__", None)
    if take is None:
        return None
    try:
        reduced = thing.__reduce_ex__(2)
    except Exception:
        return None
    if not isinstance(reduced, tuple) or len(reduced) < 3 or reduced[2] is None:
        return None
    return [handed_contents(lambda: reduced[2], take, [("__getstate__()", reduced[2])])]


# NumPy.


def numpy_contents(thing: Any) -> list[Contents] | None:
    """The elements of an array, or the state of a generator; None if `thing` is neither."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(thing, numpy.ndarray):
        if isinstance(thing.base, numpy.ndarray):
            return [_layout_contents(thing), Contents(children=[("base", thing.base)])]
        if not thing.flags.writeable and thing.base is not None:
            return []
        return [_array_contents(thing, numpy)]
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    if isinstance(thing, numpy_random.Generator):
        return [Contents(children=[("bit_generator", thing.bit_generator)])]
    if isinstance(thing, numpy_random.RandomState):
        return [handed_contents(lambda: thing.get_state(legacy=False), thing.set_state)]
    if isinstance(thing, numpy_random.BitGenerator):
        seeds = getattr(thing, "seed_seq", None)
        take = lambda state: setattr(thing, "state", state)  # noqa: E731
        return [handed_contents(lambda: thing.state, take, [("seed_seq", seeds)])]
    return None


def _layout_contents(thing: Any) -> Contents:
    """The dtype, shape and strides of an array, which can be changed by assigning to its attributes."""
    layout, writeable = (thing.dtype, thing.shape, thing.strides), bool(thing.flags.writeable)

    def restore() -> None:
        if (thing.dtype, thing.shape, thing.strides) != layout:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                thing.dtype, thing.shape, thing.strides = layout
        if thing.flags.writeable != writeable:
            thing.flags.writeable = writeable

    return Contents(restore, order=Order.ATTRIBUTES)


def _array_contents(thing: Any, numpy: Any) -> Contents:
    """The elements and layout of an array that is not a view of another."""
    copied = numpy.array(thing.view(numpy.ndarray), copy=True, order="K")
    layout = _layout_contents(thing)

    def restore() -> None:
        thing.flags.writeable = True
        if thing.nbytes != copied.nbytes:
            numpy.ndarray.resize(thing, (copied.nbytes // max(thing.itemsize, 1),), refcheck=False)
        layout.restore()
        writeable, thing.flags.writeable = thing.flags.writeable, True
        numpy.copyto(thing.view(numpy.ndarray), copied)
        thing.flags.writeable = writeable

    children = enumerate(copied.ravel().tolist()) if copied.dtype.hasobject else ()
    return Contents(restore, children, "[{}]")
