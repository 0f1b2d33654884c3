"""Counting iterators: they cannot be set back, but a fresh one that goes on equally can be put in their place."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any

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
