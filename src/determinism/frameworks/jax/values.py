"""Which record made an array, by the identity of the array; arrays never change."""

from __future__ import annotations

import weakref
from typing import Any

from determinism.frameworks.made_values import Unread, Value

_MOST_ARRAYS = 100_000


class Values:
    """What the arrays of a program hold, and the records that made them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}
        self.unread = Unread()

    def get(self, array: Any) -> Value | None:
        """What an array holds; None if nobody is known to have made it."""
        known = self._known.get(id(array))
        # A number is given again when its array is gone.
        return known[1] if known is not None and known[0]() is array else None

    def made(self, array: Any, value: Value) -> None:
        """From now on an array is known."""
        if len(self._known) >= _MOST_ARRAYS:
            self._known = {key: known for key, known in self._known.items() if known[0]() is not None}
            if len(self._known) >= _MOST_ARRAYS:
                # What is forgotten is digested when it is read.
                self._known.clear()
        self._known[id(array)] = (weakref.ref(array), value)
        self.unread.made(value)
