"""Values: their bytes and digests, which record made them, and the contents of variables."""

from __future__ import annotations

import weakref
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import dtypes
from tensorflow.python.ops import gen_resource_variable_ops

from determinism.digest import digest_bytes, digest_many, digest_text
from determinism.frameworks.made_values import Unread, Value

# Digests of what tensors hold, without a copy wherever their memory can be read in place.

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


_MOST_TENSORS = 200_000


class Resource(NamedTuple):
    """A handle of something that lives outside of tensors, such as a variable."""

    key: int
    handle: Any


class Values:
    """The records that made the eager tensors, by the numbers that TensorFlow gives these."""

    def __init__(self) -> None:
        self._made: dict[int, Value] = {}
        self.unread = Unread()

    def get(self, tensor: Any) -> Value | None:
        """Who made an eager tensor; None if nobody is known to have."""
        return self._made.get(tensor._id)

    def made(self, tensor: Any, value: Value) -> None:
        """A record made an eager tensor."""
        if len(self._made) >= _MOST_TENSORS:
            # The numbers only rise, so the oldest tensors come first; a value forgotten is digested when it is read.
            for key in list(islice(self._made, _MOST_TENSORS // 2)):
                del self._made[key]
        self._made[tensor._id] = value
        self.unread.made(value)


class Variables:
    """What every variable holds, as far as records wrote it."""

    def __init__(self) -> None:
        self._held: dict[int, Value] = {}
        self._by_digest: dict[bytes, weakref.ref[Any]] = {}

    def get(self, key: int) -> Value | None:
        """What a variable holds; None if that is not known."""
        return self._held.get(key)

    def holding(self, digest: bytes) -> Any:
        """The handle of a variable that holds this; None if none is known to."""
        reference = self._by_digest.get(digest)
        return None if reference is None else reference()

    def wrote(self, resource: Resource, value: Value) -> None:
        """From now on a variable holds what a record wrote."""
        earlier = self._held.get(resource.key)
        if earlier is not None:
            self._by_digest.pop(earlier.digest, None)
        self._held[resource.key] = value
        # A handle keeps its variable alive.
        self._by_digest[value.digest] = weakref.ref(resource.handle)


# What a variable holds, by its handle.

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
