"""What a variable holds, by its handle."""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework import dtypes
from tensorflow.python.ops import gen_resource_variable_ops

from determinism.frameworks.tensorflow.tensor_bytes import has_value, memory_address

_MOST_KNOWN = 100_000
_UNKNOWN = object()
_DTYPES: dict[int, Any] = {}
"""By the number of a handle."""


def _dtype_of(handle: Any) -> Any:
    data = handle._handle_data
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    dtype = dtypes.as_dtype(data.shape_and_type[0].dtype)
    return dtype if has_value(dtype) else None


def content_of(handle: Any) -> Any:
    """What a variable holds now, as an eager tensor that shares its memory until the variable is written.

    Args:
        handle: An eager tensor that leads to something outside of tensors.

    Returns:
        None if that is no variable of values, or holds nothing yet.
    """
    dtype = _DTYPES.get(handle._id, _UNKNOWN)
    if dtype is _UNKNOWN:
        if len(_DTYPES) >= _MOST_KNOWN:
            _DTYPES.clear()
        dtype = _DTYPES[handle._id] = _dtype_of(handle)
    if dtype is None:
        return None
    try:
        return gen_resource_variable_ops.read_variable_op(handle, dtype)
    except Exception:
        # Asking whether it was initialised would take as long as reading it.
        return None


def is_read_from(tensor: Any, handle: Any) -> bool:
    """Whether a tensor that holds what a variable holds was read from it.

    They share memory. A variable that scatter ops write hands out copies instead (`copy_on_read_mode` in
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/framework/resource_var.h): there each read lies elsewhere.

    Args:
        tensor: An eager tensor.
        handle: Of the variable.
    """
    content = content_of(handle)
    if content is None or content.dtype is not tensor.dtype or content.dtype is dtypes.string:
        return False
    address = memory_address(content)
    if address == memory_address(tensor):
        return True
    again = content_of(handle)
    return again is not None and memory_address(again) != address
