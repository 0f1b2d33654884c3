"""Where tensor values leave TensorFlow without an op: as NumPy arrays, as Python numbers, and in print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tensorflow.python.framework import ops

from determinism.frameworks.tensorflow.recorder import Recorder
from determinism.frameworks.tensorflow.tensor_bytes import has_value
from determinism.frameworks.wrapping import Undo, wrap
from determinism.import_hook import after_import
from determinism.trace.schema import Meaning
from determinism.types import Role

_KERAS_BACKEND = "keras.src.backend"
_KERAS_LAYERS = "keras.src.layers"
_PRINTED = ("numpy_text", "value_text")


def install(recorder: Recorder) -> list[Undo]:
    """Wrap the ways out of the framework; returns what takes each wrapper off.

    All methods of a tensor that give its value to Python go through one. What reads the memory itself, as `numpy.asarray` does,
    is not seen; see `Values.take_unread`.
    """
    undo = [wrap(ops._EagerTensorBase, "_numpy", _recording(recorder, is_method=True))]

    def hook_keras(_: Any) -> None:
        undo.append(wrap(sys.modules[_KERAS_BACKEND], "convert_to_numpy", _recording(recorder, is_method=False)))

    # What Keras imports TensorFlow for is not ready yet when that has been imported; what comes later is.
    after_import(_KERAS_LAYERS, hook_keras, recorder.failed_to_hook)

    def take_off() -> None:
        for one in undo:
            one()

    return [take_off]


def _recording(recorder: Recorder, *, is_method: bool) -> Callable[..., Any]:
    def around(original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.is_own():
            return original(tensor, *args, **kwargs)
        way = sys._getframe(2).f_code.co_name if is_method else "numpy"
        recorder.quietly(_escaped, recorder, f"determinism::{'print' if way in _PRINTED else way.strip('_')}", tensor)
        with recorder.suspended():
            return original(tensor, *args, **kwargs)

    return around


def _escaped(recorder: Recorder, name: str, tensor: Any) -> None:
    tensor = getattr(tensor, "_value", tensor)
    if not hasattr(tensor, "_numpy_internal") or not has_value(tensor.dtype):
        return
    value = recorder.value(tensor)
    number = recorder.emit(Role.ESCAPE, name, [value], [(value.layout, value.digest)])
    if tensor.dtype.is_floating and tensor.shape.rank == 0:
        edge = (value.record, value.output)
        recorder.writer.number(Meaning.READ, number, edge, float(tensor._numpy_internal()), recorder.progress.step)
