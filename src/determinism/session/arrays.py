"""The elements of NumPy arrays, copied so that they can be put back into the same memory."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

from determinism.session.contents import Contents, Order, Parts, Renewed


def array_contents(thing: Any) -> list[Contents] | None:
    """The elements of an array, and the array that it is a view of; None if `thing` is no array."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(thing, numpy.ndarray):
        return None
    if isinstance(thing.base, numpy.ndarray):
        return [_LayoutContents(thing), Parts(".{}", [("base", thing.base)])]
    if not thing.flags.writeable and thing.base is not None:
        return []
    return [_ArrayContents(thing, numpy)]


class _LayoutContents(Parts):
    """The dtype, shape and strides of an array, which assignments to its attributes change."""

    order: int = Order.ATTRIBUTES

    def __init__(self, thing: Any) -> None:
        super().__init__("", ())
        self._thing = thing
        self._layout = (thing.dtype, thing.shape, thing.strides)
        self._writeable = bool(thing.flags.writeable)

    def restore(self, renewed: Renewed) -> None:
        thing = self._thing
        if (thing.dtype, thing.shape, thing.strides) != self._layout:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                thing.dtype, thing.shape, thing.strides = self._layout
        if thing.flags.writeable != self._writeable:
            thing.flags.writeable = self._writeable


class _ArrayContents(_LayoutContents):
    """The elements of an array that is no view of another."""

    order: int = Order.MEMORY
    rebinds: bool = False

    def __init__(self, thing: Any, numpy: Any) -> None:
        super().__init__(thing)
        self.template = "[{}]"
        self._numpy = numpy
        self._copy = numpy.array(thing.view(numpy.ndarray), copy=True, order="K")

    def children(self) -> Iterable[tuple[object, object]]:
        return enumerate(self._copy.ravel().tolist()) if self._copy.dtype.hasobject else ()

    def restore(self, renewed: Renewed) -> None:
        thing = self._thing
        if not thing.flags.writeable:
            thing.flags.writeable = True
        if thing.nbytes != self._copy.nbytes:
            items = self._copy.nbytes // max(thing.itemsize, 1)
            self._numpy.ndarray.resize(thing, (items,), refcheck=False)
        writeable, self._writeable = self._writeable, True
        super().restore(renewed)
        self._writeable = writeable
        self._numpy.copyto(thing.view(self._numpy.ndarray), self._copy)
        if not writeable:
            thing.flags.writeable = False
