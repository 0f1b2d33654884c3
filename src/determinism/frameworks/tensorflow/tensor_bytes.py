"""Digests of what tensors hold, without a copy wherever their memory can be read in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from determinism.digest import digest_bytes, digest_many, digest_text

_UNVALUED = (tf.resource, tf.variant)


def has_value(dtype: Any) -> bool:
    """Whether tensors of a dtype hold values, and not handles of something that lives elsewhere."""
    return dtype not in _UNVALUED and not dtype._is_ref_dtype


def digest_tensor(tensor: Any) -> bytes:
    """Digest of an eager tensor that holds values.

    Args:
        tensor: On any device; waits until it is there.
    """
    if tensor.dtype is tf.string:
        return digest_array(np.asarray(tensor._numpy_internal()))
    digest: bytes = digest_bytes(tensor)
    return digest


def digest_array(array: Any) -> bytes:
    """Digest of an array as a function of the graph hands it to Python; that of a tensor with equal bytes is the same.

    Args:
        array: Of any shape and dtype; bytes are its elements where TensorFlow has strings.
    """
    if array.dtype.hasobject or array.dtype.kind == "S":
        return digest_many(_text_digest(one) for one in array.ravel())
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    try:
        digest: bytes = digest_bytes(array)
    except (ValueError, TypeError, BufferError):
        # Dtypes that NumPy does not have, such as bfloat16, give no buffer.
        digest = digest_bytes(array.tobytes())
    return digest


def _text_digest(one: Any) -> bytes:
    return digest_bytes(one) if isinstance(one, bytes) else digest_text(str(one))


def memory_address(tensor: Any) -> int:
    """Where an eager tensor of numbers lies in the memory of the host."""
    array = tensor._numpy_internal()
    return int(array.__array_interface__["data"][0]) if isinstance(array, np.ndarray) else id(tensor)


def device_name(device: str) -> str:
    """What a report calls a device: the end of TensorFlow's long name."""
    return device.rpartition("/device:")[2] or "CPU:0"
