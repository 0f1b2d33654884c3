"""What a variable holds, by its handle."""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework import dtypes
from tensorflow.python.ops import gen_resource_variable_ops

from determinism.frameworks.tensorflow.tensor_bytes import has_value


def content_of(handle: Any) -> Any:
    """What a variable holds now, as an eager tensor that shares its memory until the variable is written.

    Args:
        handle: An eager tensor that leads to something outside of tensors.

    Returns:
        None if that is no variable of values, or holds nothing yet.
    """
    data = handle._handle_data
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    dtype = dtypes.as_dtype(data.shape_and_type[0].dtype)
    if not has_value(dtype):
        return None
    try:
        return gen_resource_variable_ops.read_variable_op(handle, dtype)
    except Exception:
        # Asking whether it was initialised would take as long as reading it.
        return None
