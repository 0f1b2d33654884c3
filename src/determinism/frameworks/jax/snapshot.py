"""The values that `determinism.check(fn)` meets in a JAX program.

Keys, tree definitions and compiled functions do not change, and arrays only where they are donated; so nothing of them is
copied or put back. What a mutable reference (`jax.new_ref`) holds is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

from determinism.frameworks.snapshots import Contents

_EXTENSION = ("jaxlib", "jax.jaxlib")


_REFERENCES = frozenset({"Ref", "ArrayRef", "MutableArray"})
"""Names that the class of mutable references has had, the newest first: https://docs.jax.dev/en/latest/array_refs.html."""


def contents_of(thing: Any) -> list[Contents] | None:
    """What an object of JAX holds for Python; None for every other object."""
    kind = type(thing)
    if kind.__module__.startswith("jax.") and kind.__name__ in _REFERENCES:
        held = thing[...]
        return [Contents(lambda: thing.__setitem__(..., held), is_whole=True)]
    if isinstance(thing, jax.Array) and hasattr(thing, "is_deleted"):
        return [] if thing.is_deleted() else [Contents(lambda: _require_present(thing), is_whole=True)]
    # Nothing of jaxlib is ever restored: PyTreeDef.__setstate__ fails, and clear_all() may hang in the next check.
    if not any(_is_of_extension(base.__module__) for base in type(thing).__mro__):
        return None
    inner = getattr(thing, "__wrapped__", None)
    return [Contents(children=[] if inner is None else [("__wrapped__", inner)], is_whole=True)]


def _require_present(array: Any) -> None:
    """See that nobody has taken the memory of an array: it cannot be given back.

    Raises:
        RuntimeError: It was donated.
    """
    if array.is_deleted():
        raise RuntimeError(
            "the array was donated (donate_argnums or donate_argnames), so its memory has been reused. Donate a copy "
            "inside the function, as with jax.numpy.copy"
        )


def _is_of_extension(module: str) -> bool:
    return module in _EXTENSION or module.startswith(tuple(f"{name}." for name in _EXTENSION))


def capture_generators() -> None:
    """Nothing: keys belong to the program."""


def restore_generators(states: None) -> None:
    """Put nothing back."""


def undisturbed() -> AbstractContextManager[None]:
    """Nothing needs to be hidden: nothing is read."""
    return nullcontext()
