"""A captured state and the forms in which it is stored: a file, bytes, a dictionary for `torch.save`, a tree."""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy import ndarray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from determinism.errors import StateError
from determinism.frameworks.registry import STATES

# The interface for saving the state of frameworks, and its adapters for the loaded ones.


class StateKeeper(Protocol):
    """Interface of a framework's adapter for saving state."""

    def generator_states(self) -> dict[str, Any]:
        """Return the states of the global generators, as nested values and tensors."""

    def restore_generator_states(self, states: dict[str, Any]) -> None:
        """Restore the states of the global generators."""

    def rank(self) -> tuple[int, int] | None:
        """Return the rank of this process and the number of ranks; None if it computes alone."""

    def devices(self) -> dict[str, int]:
        """Return the number of devices of each kind that has generators."""

    def state_of(self, thing: Any) -> tuple[str, Any] | None:
        """Return the kind and state of one of the framework's generators; None if `thing` is not one."""

    def put_back(self, thing: Any, state: Any) -> None:
        """Restore a state in a generator of the same kind."""

    def to_array(self, thing: Any) -> tuple[ndarray[Any, Any], dict[str, Any]] | None:
        """Return a tensor's copy as an array, and a description for `from_array`; None if `thing` is not a tensor."""

    def from_array(self, array: ndarray[Any, Any], description: dict[str, Any]) -> Any:
        """Return the tensor, on the CPU."""

    def gaps(self) -> list[str]:
        """Return descriptions of state that the framework does not expose."""


def loaded_keepers() -> Iterator[tuple[str, StateKeeper]]:
    """Yield the name and adapter of each framework that the program has loaded; no framework is imported."""
    for name, module in STATES.items():
        if name in sys.modules:
            yield name, cast(StateKeeper, import_module(module))


def keeper(name: str) -> StateKeeper:
    """Return the adapter of a framework, importing the framework if necessary.

    Raises:
        StateError: It is not installed, or unknown.
    """
    try:
        return cast(StateKeeper, import_module(STATES[name]))
    except (ImportError, KeyError):
        raise StateError(
            "state-unfit",
            f"The state holds tensors of {name}, which cannot be imported here, so nothing was restored. Install {name}.",
        ) from None


# Converts nested values to JSON and arrays and back. Neither form can run code.

_STORED = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)
"""Types that have the same name in safetensors; others are stored as bytes."""


class Encoder:
    """Converts values to JSON and collects the arrays in them."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    def encode(self, value: Any, path: str) -> Any:
        """Return the JSON of a value.

        Args:
            value: None, numbers, strings, bytes, lists, tuples, dictionaries, arrays and tensors, nested.
            path: Name of the value, from which its arrays get theirs.

        Raises:
            StateError: It contains a value of another type; the message names the path to it.
        """
        # Subclasses of numbers and strings would be restored as another type.
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
        # The module versions in a `state_dict` of PyTorch.
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
        # safetensors reserves `__metadata__`.
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
        f"{path} is a {kind}, but a state holds only numbers, strings, lists, dictionaries, arrays and tensors, since "
        "restoring anything else would have to run code. Nothing was captured. Pass its contents, or an object with "
        "state_dict() and load_state_dict().",
    )


def decode(encoded: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """Return the encoded value, with tensors on the CPU.

    Raises:
        KeyError, TypeError, ValueError: It is not valid JSON of this form.
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
    raise ValueError(f"{kind!r} is not a kind of value")


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


_FAMILY = "determinism.state/"
_VERSION = 1
FORMAT = f"{_FAMILY}{_VERSION}"
_DOCUMENT = "determinism"
"""Name of the JSON in the file's metadata."""


@dataclass(frozen=True)
class State:
    """The state with which a run continues: generators, given parts, settings, and where it was captured."""

    document: dict[str, Any]
    """Everything except the arrays, as JSON that refers to them by name."""
    arrays: dict[str, np.ndarray[Any, Any]]

    @property
    def epoch(self) -> int | None:
        """The epoch that was given; None if none was."""
        return self._given("epoch")

    @property
    def step(self) -> int | None:
        """The step that was given; None if none was."""
        return self._given("step")

    def _given(self, part: str) -> int | None:
        if part not in self:
            return None
        value: int = self[part]
        return value

    @property
    def gaps(self) -> list[str]:
        """What could not be captured, in words; empty if nothing is missing."""
        return list(self.document["gaps"])

    @property
    def parts(self) -> list[str]:
        """The names of the parts that were given."""
        return list(self.document["parts"])

    def __contains__(self, part: object) -> bool:
        return part in self.document["parts"]

    def __getitem__(self, part: str) -> Any:
        """Return the saved state of a part: its value, its `state_dict()`, or the state of a generator."""
        return self.value(self.document["parts"][part]["value"])

    def value(self, encoded: Any) -> Any:
        """Decode a value in the document.

        Raises:
            StateError: The state is damaged.
        """
        try:
            return decode(encoded, self.arrays)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise _unreadable("The state", f"a value in it is damaged ({type(error).__name__}: {error})") from None

    def to_bytes(self) -> bytes:
        """Return the state as the bytes of a safetensors file, with the JSON in its metadata."""
        metadata = {_DOCUMENT: json.dumps(self.document, allow_nan=False, separators=(",", ":"))}
        return bytes(save_arrays(self.arrays, metadata=metadata))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file atomically: after a failure the file is unchanged or absent.

        Args:
            path: The file; each rank needs its own.

        Raises:
            StateError: It cannot be written.
        """
        target = Path(path)
        temporary = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            with temporary.open("wb") as file:
                file.write(self.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StateError(
                "state-unwritable",
                f"{target} cannot be written ({error.strerror or error}), so the state was not saved; an existing file is "
                "unchanged. Free up space, or give a path that you can write to.",
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary of strings and PyTorch tensors, to include in what `torch.save` saves.

        `torch.load` loads it with `weights_only=True`.
        """
        torch = keeper("torch")
        tensors = {name: torch.from_array(array, {}) for name, array in self.arrays.items()}
        return {"format": FORMAT, "document": json.dumps(self.document, allow_nan=False), "tensors": tensors}

    def to_tree(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the state as a tree for Orbax to save, with one array of bytes, so that no number is converted."""
        return {_DOCUMENT: np.frombuffer(self.to_bytes(), dtype=np.uint8)}

    def __repr__(self) -> str:
        """Summarize the state in one line."""
        gaps = f", {len(self.gaps)} gaps" if self.gaps else ""
        return f"<determinism state: generators of {', '.join(self.document['generators'])}; parts {', '.join(self.parts) or 'none'}{gaps}>"


def load(path: str | os.PathLike[str]) -> State:
    """Read a state that `State.save` wrote. Nothing in the file is run.

    Args:
        path: The file.

    Raises:
        StateError: The file does not exist, is not a saved state, is damaged, or was written by a newer version.

    Returns:
        The state.

    Example:
        >>> determinism.state.capture(step=7).save("last.state")
        >>> determinism.state.load("last.state").step
        7
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(str(path), error.strerror or str(error)) from None
    return from_bytes(data, str(path))


def from_bytes(data: bytes, name: str = "The data") -> State:
    """Read a state that `State.to_bytes` returned. Nothing in it is run.

    Args:
        data: The bytes.
        name: Name of the data in messages.

    Raises:
        StateError: The bytes are not a saved state, are damaged, or were written by a newer version.

    Returns:
        The state.

    Example:
        >>> data = determinism.state.capture(step=7).to_bytes()
        >>> determinism.state.from_bytes(data).step
        7
    """
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        text = header["__metadata__"][_DOCUMENT]
        arrays = load_arrays(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(
            name, f"it is not a saved state, or it is damaged ({type(error).__name__}: {error})"
        ) from None
    return _checked(text, dict(arrays), name)


def from_dict(saved: Mapping[str, Any]) -> State:
    """Read a state that `State.to_dict` returned.

    Args:
        saved: The dictionary.

    Raises:
        StateError: It is not a saved state, is damaged, or was written by a newer version.

    Returns:
        The state.

    Example:
        >>> import torch
        >>> torch.save({"determinism": determinism.state.capture(step=7).to_dict()}, "last.pt")
        >>> determinism.state.from_dict(torch.load("last.pt", weights_only=True)["determinism"]).step
        7
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    try:
        for name, tensor in saved["tensors"].items():
            arrays[name] = np.array(tensor.cpu().numpy())
        text = saved["document"]
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable("The dictionary", f"it is not a saved state ({type(error).__name__}: {error})") from None
    return _checked(text, arrays, "The dictionary")


def from_tree(tree: Mapping[str, Any]) -> State:
    """Read a state that `State.to_tree` returned, as Orbax restores it: as NumPy or JAX arrays.

    Args:
        tree: The tree.

    Raises:
        StateError: It is not a saved state, is damaged, or was written by a newer version.

    Returns:
        The state.

    Example:
        >>> tree = determinism.state.capture(step=7).to_tree()
        >>> determinism.state.from_tree(tree).step
        7
    """
    try:
        data = np.asarray(tree[_DOCUMENT], dtype=np.uint8).tobytes()
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable("The tree", f"it is not a saved state ({type(error).__name__}: {error})") from None
    return from_bytes(data, "The tree")


_KEYS = ("surroundings", "settings", "seeds", "unseeded", "generators", "registered", "parts", "gaps")


def _checked(text: str, arrays: dict[str, np.ndarray[Any, Any]], name: str) -> State:
    try:
        document = json.loads(text)
        found = str(document["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(
            name, f"it is not a saved state, or it is damaged ({type(error).__name__}: {error})"
        ) from None
    number = found.removeprefix(_FAMILY)
    if number.isdecimal() and int(number) > _VERSION:
        raise StateError(
            "state-newer",
            f"{name} is in the format {found}, but this version of determinism reads {FORMAT}, so nothing was loaded. Install "
            f"determinism {document.get('determinism', 'of the version that saved it')} or newer.",
        )
    missing = [key for key in _KEYS if key not in document]
    if found != FORMAT or missing:
        raise _unreadable(name, f"its format is {found!r} and it lacks {', '.join(missing) or 'nothing'}")
    return State(document, arrays)


def _unreadable(name: str, reason: str) -> StateError:
    return StateError(
        "state-unreadable",
        f"{name} cannot be read as a state: {reason}. Nothing was restored. Give the output of State.save, to_bytes or to_dict.",
    )
