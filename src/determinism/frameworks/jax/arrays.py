"""JAX arrays: digests of their content, without a copy where possible; conversion to NumPy; and memory shared with NumPy."""

from __future__ import annotations

import ctypes
import re
import weakref
from typing import Any

import jax
import numpy as np

from determinism.digest import digest_bytes, digest_many, digest_text

_PACKED = re.compile(r"u?int[1-7]|float[1-7]_.+")
"""Types of which several elements share a byte; the memory after them is uninitialised."""


def array_of(thing: Any) -> Any:
    """The array with the numbers of a JAX value; for an array of keys, the underlying array; None for other values."""
    base = getattr(thing, "_base_array", thing)
    return base if isinstance(base, jax.Array) and hasattr(base, "_arrays") else None


def digest_array(array: Any) -> bytes:
    """Digest of a JAX array, or of the part that this process holds; waits until it is computed.

    Args:
        array: On any devices; for one that is sharded over several, each part counts once, in the order of its index.
    """
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0] if len(array._arrays) > 1 else []
    if not shards:
        return _digest_part(array._arrays[0])
    placed = sorted(shards, key=lambda shard: str(shard.index))
    return digest_many(part for one in placed for part in (digest_text(str(one.index)), _digest_part(one.data)))


def digests_of_parts(array: Any) -> list[bytes]:
    """Digests of the parts of a JAX array, one for each device of this process."""
    return [_digest_part(one) for one in array._arrays]


def _digest_part(part: Any) -> bytes:
    """Digest of an array on one device."""
    array = getattr(part, "_arrays", [part])[0]
    array.block_until_ready()
    if _PACKED.fullmatch(array.dtype.name):
        return digest_value(jax.device_get(part))
    if array.device.platform != "cpu":
        # Reading the array itself would make it keep a copy on the host.
        return digest_value(np.asarray(jax.device_put(array, jax.devices("cpu")[0])))
    size = array.nbytes
    if not size:
        return digest_bytes(b"")
    memory = (ctypes.c_char * size).from_address(array.unsafe_buffer_pointer())
    digest: bytes = digest_bytes(memory)
    return digest


def digest_value(value: Any) -> bytes:
    """Digest of a value that a program passes to JAX: a NumPy array or a Python number."""
    array = np.asarray(value)
    if array.dtype.hasobject:
        return digest_text(str(value))
    return digest_bytes(np.ascontiguousarray(array).tobytes())


def as_array(thing: Any) -> Any:
    """Convert a JAX array, or a value that will become one, to a NumPy array; memory is not shared with a JAX array."""
    array = array_of(thing)
    return np.asarray(thing) if array is None else np.array(jax.device_get(array))


def digest(array: Any) -> bytes:
    """Digest of the elements of a NumPy array."""
    found: bytes = digest_bytes(np.ascontiguousarray(array).tobytes())
    return found


# NumPy memory that JAX reads in place.

_MOST_BUFFERS = 1000


class SharedMemory:
    """NumPy memory that JAX reads without a copy, and perhaps later: on the CPU, too, a call returns before it has run."""

    def __init__(self) -> None:
        self._owners: dict[int, weakref.ref[Any]] = {}
        """The NumPy array that owns the memory at an address, where a JAX array was made of it without a copy."""
        self._reads: dict[int, tuple[weakref.ref[Any], bytes, str]] = {}
        """By address: the owner, and the digest and the execution that read it since the program last waited for a result."""

    def made(self, array: Any, given: Any) -> None:
        """Note that a JAX array was made from a NumPy array."""
        address = _address(array)
        if address is not None and isinstance(given, np.ndarray) and given.ctypes.data == address:
            if len(self._owners) >= _MOST_BUFFERS:
                self._owners.clear()
            self._owners[address] = weakref.ref(_owner(given))

    def read(self, thing: Any, digest: bytes, op: str) -> str | None:
        """Note that an execution is about to read a value from outside.

        Returns:
            The execution that read other content in the same memory, and that the program has not waited for; None if there is none.
        """
        is_numpy = isinstance(thing, np.ndarray)
        address: int | None = thing.ctypes.data if is_numpy else _address(thing)
        if address is None:
            return None
        owner = weakref.ref(_owner(thing)) if is_numpy else self._owners.get(address)
        if owner is None:
            return None
        if len(self._reads) >= _MOST_BUFFERS:
            self._reads.clear()
        earlier = self._reads.get(address)
        self._reads[address] = (owner, digest, op)
        if earlier is None or address not in self._owners or earlier[1] == digest:
            return None
        is_same = earlier[0]() is not None and earlier[0]() is owner()
        return earlier[2] if is_same else None

    def waited(self) -> None:
        """Note that the program waited for a result, before which all earlier executions ended."""
        self._reads.clear()


def _address(thing: Any) -> int | None:
    """Where an array on the CPU is; None for other things, and for an array on several devices."""
    array = array_of(thing)
    if array is None or array.is_deleted() or len(array._arrays) != 1 or not array.nbytes:
        return None
    [device] = array.devices()
    return int(array.unsafe_buffer_pointer()) if device.platform == "cpu" else None


def _owner(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
