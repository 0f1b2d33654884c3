"""The values that `determinism.check(fn)` meets in a JAX program.

Keys, tree definitions and compiled functions do not change, and arrays only where they are donated; so nothing of them is
copied or put back. What a mutable reference (`jax.new_ref`) holds is. The classes here have the shape that
`determinism.session.contents.Contents` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

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


class _Array(_Value):
    """An array, whose memory a function may have been given."""

    def __init__(self, array: Any) -> None:
        super().__init__([])
        self._array = array

    def restore(self, renewed: Callable[[object], object]) -> None:
        """Nothing can be done for an array that is gone.

        Raises:
            RuntimeError: It was donated.
        """
        if self._array.is_deleted():
            raise RuntimeError(
                "the array was donated (donate_argnums or donate_argnames), so its memory is used for something else by now. Give a "
                "copy away inside the function, as with jax.numpy.copy"
            )


class _Reference(_Value):
    """What a mutable reference holds."""

    def __init__(self, reference: Any) -> None:
        super().__init__([])
        self._reference = reference
        self._held = reference[...]

    def restore(self, renewed: Callable[[object], object]) -> None:
        """Let it hold that again."""
        self._reference[...] = self._held


_REFERENCES = frozenset({"Ref", "ArrayRef", "MutableArray"})
"""Names that the class of mutable references has had, the newest first: https://docs.jax.dev/en/latest/array_refs.html."""


def contents_of(thing: Any) -> list[Any] | None:
    """What an object of JAX holds for Python; None for every other object.

    Returns:
        Objects with the shape of `determinism.session.contents.Contents`.
    """
    kind = type(thing)
    if kind.__module__.startswith("jax.") and kind.__name__ in _REFERENCES:
        return [_Reference(thing)]
    if isinstance(thing, jax.Array) and hasattr(thing, "is_deleted"):
        return [] if thing.is_deleted() else [_Array(thing)]
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
