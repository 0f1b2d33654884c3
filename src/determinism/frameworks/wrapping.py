"""Puts a wrapper in the place of a function, and takes it off again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]


class Replaced:
    """A wrapper in the place of a function; calling it takes the wrapper off."""

    def __init__(self, owner: Any, name: str, wrapper: Any) -> None:
        self._owner = owner
        self._name = name
        self._own = vars(owner).get(name)
        self._wrapper = wrapper
        setattr(owner, name, wrapper)

    def __call__(self) -> None:
        """Take the wrapper off, unless somebody has put another one over it since."""
        self.take_off()

    def take_off(self) -> bool:
        """See `__call__`; whether it was taken off."""
        if vars(self._owner).get(self._name) is not self._wrapper:
            return False
        if self._own is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)
        return True

    def put_back(self) -> None:
        """Put a wrapper that was taken off in its place again, unless somebody has put another one there since."""
        if vars(self._owner).get(self._name) is self._own:
            setattr(self._owner, self._name, self._wrapper)


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> Undo:
    """Replace a function or method.

    Args:
        owner: The module or class that has it.
        name: Its name there.
        around: Called in its place, with the original first.

    Returns:
        What takes the wrapper off, unless somebody has put another one over it since.
    """

    def wrapper_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        return wrapper

    return replace(owner, name, wrapper_of)


def replace(owner: Any, name: str, wrapper_of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Replaced:
    """Replace a function or method, where a call more would cost too much.

    Args:
        owner: See `wrap`.
        name: See `wrap`.
        wrapper_of: Makes of the original what is called in its place.

    Returns:
        See `wrap`.
    """
    original = getattr(owner, name)
    return Replaced(owner, name, functools.wraps(original)(wrapper_of(original)))
