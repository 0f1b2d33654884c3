"""Where tensor values leave TensorFlow without an op: as NumPy arrays, as Python numbers, and in print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.framework import ops

from determinism.frameworks.tensorflow.recorder import Recorder
from determinism.frameworks.tensorflow.tensor_bytes import has_value
from determinism.frameworks.wrapping import Undo, wrap
from determinism.trace.schema import Meaning
from determinism.types import Role

_WAYS = (
    "numpy", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__", "__format__", "__str__", "__repr__",
    "__reduce__", "__copy__", "__deepcopy__", "__dlpack__", "__iter__",
)  # fmt: skip
_COPIES = ("__copy__", "__deepcopy__", "__iter__")


def install(recorder: Recorder) -> list[Undo]:
    """Wrap the ways out of the framework; returns what takes each wrapper off."""
    kind = ops._EagerTensorBase
    return [wrap(kind, way, _recording(recorder, way)) for way in _WAYS if way not in _COPIES and hasattr(kind, way)]


def _recording(recorder: Recorder, way: str) -> Callable[..., Any]:
    name = f"determinism::{way.strip('_')}"

    def around(original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.is_own():
            return original(tensor, *args, **kwargs)
        recorder.quietly(_escaped, recorder, name, tensor)
        with recorder.suspended():
            return original(tensor, *args, **kwargs)

    return around


def _escaped(recorder: Recorder, name: str, tensor: Any) -> None:
    if not has_value(tensor.dtype):
        return
    value = recorder.value(tensor)
    number = recorder.emit(Role.ESCAPE, name, [value], [(value.layout, value.digest)])
    if tensor.dtype.is_floating and tensor.shape.rank == 0:
        edge = (value.record, value.output)
        recorder.writer.number(Meaning.READ, number, edge, float(tensor._numpy_internal()), recorder.progress.step)
