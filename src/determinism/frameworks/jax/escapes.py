"""Where values leave JAX: as NumPy arrays, as Python numbers, and in print."""

from __future__ import annotations

import sys
from typing import Any

from jax._src.array import ArrayImpl

from determinism.frameworks.jax.recorder import Recorder
from determinism.frameworks.wrapping import Undo
from determinism.trace.schema import Meaning
from determinism.types import Role

_NAMES = {"__array__": "numpy", "_device_get": "numpy", "__reduce__": "pickle", "__repr__": "print", "__str__": "print", "__format__": "print"}  # fmt: skip


def install(recorder: Recorder) -> list[Undo]:
    """Wrap the property through which an array gives its value to Python; returns what takes that off.

    What reads the memory itself, as `numpy.asarray` does, is not seen; see `Unread`.
    """
    original = vars(ArrayImpl)["_value"]

    def value(array: Any) -> Any:
        if recorder.is_active and recorder.is_own():
            way = sys._getframe(1).f_code.co_name
            recorder.quietly(_escaped, recorder, f"determinism::{_NAMES.get(way, way.strip('_'))}", array)
        return original.fget(array)

    wrapper = property(value, doc=original.__doc__)
    ArrayImpl._value = wrapper  # type: ignore[assignment]

    def take_off() -> None:
        if vars(ArrayImpl)["_value"] is wrapper:
            ArrayImpl._value = original

    return [take_off]


def _escaped(recorder: Recorder, name: str, array: Any) -> None:
    if array.is_deleted():
        return
    value = recorder.value(array)
    number = recorder.emit(Role.ESCAPE, name, [value], [(value.layout, value.digest)], frame=sys._getframe(2))
    if array.ndim == 0 and array.dtype.kind == "f":
        read = float(vars(type(array))["_value"].fget(array))
        recorder.writer.number(Meaning.READ, number, (value.record, value.output), read, recorder.progress.step)
