"""Which record made a value: for eager tensors by their identity, for variables by their handle."""

from __future__ import annotations

import weakref
from itertools import islice
from typing import Any, NamedTuple

from determinism.frameworks.made_values import Unread, Value

_MOST_TENSORS = 200_000


class Resource(NamedTuple):
    """A handle of something that lives outside of tensors, such as a variable."""

    key: int
    handle: Any


class Values:
    """The records that made the eager tensors, by the numbers that TensorFlow gives these."""

    def __init__(self) -> None:
        self._made: dict[int, Value] = {}
        self.unread = Unread()

    def get(self, tensor: Any) -> Value | None:
        """Who made an eager tensor; None if nobody is known to have."""
        return self._made.get(tensor._id)

    def made(self, tensor: Any, value: Value) -> None:
        """A record made an eager tensor."""
        if len(self._made) >= _MOST_TENSORS:
            # The numbers only rise, so the oldest tensors come first; a value forgotten is digested when it is read.
            for key in list(islice(self._made, _MOST_TENSORS // 2)):
                del self._made[key]
        self._made[tensor._id] = value
        self.unread.made(value)


class Variables:
    """What every variable holds, as far as records wrote it."""

    def __init__(self) -> None:
        self._held: dict[int, Value] = {}
        self._by_digest: dict[bytes, weakref.ref[Any]] = {}

    def get(self, key: int) -> Value | None:
        """What a variable holds; None if that is not known."""
        return self._held.get(key)

    def holding(self, digest: bytes) -> Any:
        """The handle of a variable that holds this; None if none is known to."""
        reference = self._by_digest.get(digest)
        return None if reference is None else reference()

    def wrote(self, resource: Resource, value: Value) -> None:
        """From now on a variable holds what a record wrote."""
        earlier = self._held.get(resource.key)
        if earlier is not None:
            self._by_digest.pop(earlier.digest, None)
        self._held[resource.key] = value
        # A handle keeps its variable alive.
        self._by_digest[value.digest] = weakref.ref(resource.handle)
