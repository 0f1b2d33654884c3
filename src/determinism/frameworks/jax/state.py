"""The values that `determinism.check(fn)` meets in a JAX program: nothing of them is copied, nothing put back.

Arrays, keys, tree definitions and compiled functions do not change. The class here has the shape that
`determinism.session.contents.Contents` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_EXTENSION = ("jaxlib", "jax.jaxlib")


class _Value:
    """An object of jaxlib; a compiled function holds the Python function that it was made from."""

    order: int = 0
    template: str = ".{}"
    rebinds: bool = False
    is_whole: bool = True
    """Nothing else of the object is the program's state."""

    def __init__(self, parts: list[tuple[object, object]]) -> None:
        self._parts = parts

    def children(self) -> Iterable[tuple[object, object]]:
        return self._parts

    def restore(self, renewed: Callable[[object], object]) -> None:
        """Leave it as it is."""


def contents_of(thing: Any) -> list[Any] | None:
    """What an object of jaxlib holds for Python; None for every other object.

    Returns:
        Objects with the shape of `determinism.session.contents.Contents`.
    """
    # Nothing of jaxlib is ever restored: PyTreeDef.__setstate__ fails, and clear_all() may hang in the next check.
    if not any(_is_of_extension(base.__module__) for base in type(thing).__mro__):
        return None
    inner = getattr(thing, "__wrapped__", None)
    return [_Value([] if inner is None else [("__wrapped__", inner)])]


def _is_of_extension(module: str) -> bool:
    return module in _EXTENSION or module.startswith(tuple(f"{name}." for name in _EXTENSION))


def capture_generators() -> None:
    """Nothing: keys belong to the program."""


def restore_generators(states: None) -> None:
    """Put nothing back."""


def undisturbed() -> AbstractContextManager[None]:
    """Nothing needs to be hidden: nothing is read."""
    return nullcontext()
