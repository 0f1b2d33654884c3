"""Puts a wrapper in the place of a function, and takes it off again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]


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


def replace(owner: Any, name: str, wrapper_of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Undo:
    """Replace a function or method, where a call more would cost too much.

    Args:
        owner: See `wrap`.
        name: See `wrap`.
        wrapper_of: Makes of the original what is called in its place.

    Returns:
        See `wrap`.
    """
    original = getattr(owner, name)
    own = vars(owner).get(name)
    wrapper = functools.wraps(original)(wrapper_of(original))
    setattr(owner, name, wrapper)

    def undo() -> None:
        if vars(owner).get(name) is not wrapper:
            return
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return undo
