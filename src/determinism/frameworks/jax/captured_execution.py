"""One execution of a compiled program with what it was given, to be run again by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from determinism.digest import digest_bytes
from determinism.frameworks.array_capture import NotWritable
from determinism.frameworks.jax.array_bytes import array_of

_CALLS_BACK = "the program calls back into Python, which would do something else each time"


class CapturedExecution:
    """An execution, whose inputs are copied before it runs: it may take the memory of those that were donated to it."""

    def __init__(self, original: Callable[..., Any], execution: Any, args: Sequence[Any]) -> None:
        """Copy the inputs.

        Args:
            original: What runs an `ExecuteReplicated`.
            execution: The `ExecuteReplicated`.
            args: Its arguments.
        """
        self._original = original
        self._execution = execution
        self._args = [_copy(one) for one in args]
        self.inputs = [as_array(one) for at, one in enumerate(self._args) if at in execution.kept_var_idx]
        self.outputs: Sequence[Any] = ()
        self.problem = _CALLS_BACK if execution.has_host_callbacks else None

    def run(self) -> list[Any]:
        """Run it once more; gives arrays."""
        results = self._original(self._execution, *[_copy(one) for one in self._args])
        return [as_array(one) for one in results if array_of(one) is not None]

    def document(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing: no script is written for JAX.

        Raises:
            NotWritable: Always.
        """
        raise NotWritable(
            "scripts are written for single ops of PyTorch and TensorFlow, and this is a compiled program"
        )


def _copy(thing: Any) -> Any:
    array = array_of(thing)
    if array is None:
        return thing
    copied = jax.device_put(np.array(as_array(array)), array.sharding)
    return copied if thing is array else thing


def as_array(thing: Any) -> Any:
    """An array of JAX, or what is to become one, as an array of NumPy that shares no memory with it."""
    array = array_of(thing)
    return np.asarray(thing) if array is None else np.array(jax.device_get(array))


def digest(array: Any) -> bytes:
    """Digest of the elements of an array of NumPy."""
    found: bytes = digest_bytes(np.ascontiguousarray(array).tobytes())
    return found
