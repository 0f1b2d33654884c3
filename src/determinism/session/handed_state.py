"""Objects whose state is hidden, and that hand out a copy of it and take one back."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from determinism.session.contents import Contents, Order, Parts, Renewed

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
