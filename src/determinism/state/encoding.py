"""Turns nested values into JSON and arrays, and back. Nothing in either form can run code."""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from determinism.errors import StateError
from determinism.state.frameworks import keeper, loaded_keepers

_STORED = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)
"""Types that safetensors names alike; others are stored as their bytes."""


class Encoder:
    """Makes JSON of values, and collects the arrays in them."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    def encode(self, value: Any, path: str) -> Any:
        """The JSON of a value.

        Args:
            value: None, numbers, texts, bytes, lists, tuples, dictionaries, arrays and tensors, nested.
            path: What it is called; names its arrays.

        Raises:
            StateError: There is something else in it; the message names the way to it.
        """
        # Subclasses of numbers and texts would come back as something else.
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode("ascii")}
        if type(value) is list:
            return self._items(value, path)
        if type(value) is tuple or (isinstance(value, tuple) and not hasattr(value, "_fields")):
            return {"tuple": self._items(value, path)}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, np.generic):
            return {"scalar": self._array(np.asarray(value), path)}
        if type(value) is np.ndarray:
            return {"array": self._array(value.copy(order="C"), path)}
        return self._tensor(value, path)

    def _items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self.encode(value, f"{path}[{index}]") for index, value in enumerate(values)]

    def _mapping(self, value: Mapping[Any, Any], path: str) -> dict[str, Any]:
        kind = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}.get(type(value))
        if kind is None:
            raise _refused(value, path)
        pairs = [
            [self.encode(key, f"a key of {path}"), self.encode(item, f"{path}.{key}")] for key, item in value.items()
        ]
        encoded: dict[str, Any] = {kind: pairs}
        # The versions of the modules in a state_dict of PyTorch's.
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            encoded["metadata"] = self.encode(metadata, f"{path}._metadata")
        return encoded

    def _tensor(self, value: Any, path: str) -> dict[str, Any]:
        for name, adapter in loaded_keepers():
            found = adapter.to_array(value)
            if found is not None:
                array, description = found
                return {"tensor": self._array(array, path), "framework": name, **description}
        raise _refused(value, path)

    def _array(self, array: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        if array.dtype.hasobject or array.dtype.names is not None:
            raise _refused(array, path)
        name = path
        # The second is where safetensors has its metadata.
        while name in self.arrays or name == "__metadata__":
            name += "'"
        if array.dtype.name in _STORED and array.dtype.isnative:
            self.arrays[name] = array
            return {"name": name}
        self.arrays[name] = np.frombuffer(array.tobytes(), dtype=np.uint8)
        return {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}


def _refused(value: Any, path: str) -> StateError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return StateError(
        "state-unsaveable",
        f"{path} is a {kind}, and a state holds only numbers, texts, lists, dictionaries, arrays and tensors, since anything "
        "else would have to run code to come back. Nothing was captured. Give what it consists of, or an object with "
        "state_dict() and load_state_dict().",
    )


def decode(encoded: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """The value that was encoded; tensors are on the CPU.

    Args:
        encoded: The JSON.
        arrays: The arrays that it names.

    Raises:
        KeyError, TypeError, ValueError: It is no such JSON.
        StateError: A framework is not installed.
    """
    if isinstance(encoded, list):
        return [decode(item, arrays) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    kind = next(iter(encoded), "")
    content: Any = encoded.get(kind)
    if kind in _MAPPINGS:
        return _decoded_mapping(kind, encoded, arrays)
    if kind == "tensor":
        return keeper(encoded["framework"]).from_array(_stored(content, arrays), encoded)
    if kind == "array":
        return _stored(content, arrays)
    if kind == "scalar":
        return _stored(content, arrays)[()]
    if kind == "tuple":
        return tuple(decode(item, arrays) for item in content)
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "float":
        return float(content)
    raise ValueError(f"{kind!r} is no kind of value")


_MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}


def _decoded_mapping(kind: str, encoded: dict[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[Any, Any]:
    made = _MAPPINGS[kind]()
    for key, item in encoded[kind]:
        made[decode(key, arrays)] = decode(item, arrays)
    if "metadata" in encoded:
        made._metadata = decode(encoded["metadata"], arrays)  # type: ignore[attr-defined]
    return made


def _stored(described: dict[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    array = arrays[described["name"]]
    if "dtype" in described:
        dtype = np.dtype(described["dtype"])
        if dtype.hasobject:
            raise ValueError(f"{dtype} can hold objects")
        return np.frombuffer(array.tobytes(), dtype=dtype).reshape(described["shape"]).copy()
    return array.copy()
