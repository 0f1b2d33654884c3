"""A captured state, and the forms that it is kept in: a file, bytes, a dictionary for `torch.save`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from determinism.errors import StateError
from determinism.state.encoding import decode
from determinism.state.frameworks import keeper

_FAMILY = "determinism.state/"
_VERSION = 1
FORMAT = f"{_FAMILY}{_VERSION}"
_DOCUMENT = "determinism"
"""Under this name the JSON lies in the metadata of the file."""


@dataclass(frozen=True)
class State:
    """What a run needs to go on: states of generators, the parts that were given, settings, and where it was captured."""

    document: dict[str, Any]
    """Everything but arrays, as JSON; it names the arrays."""
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
        """What was saved of a part: its value, its `state_dict()`, or the state of a generator."""
        return self.value(self.document["parts"][part]["value"])

    def value(self, encoded: Any) -> Any:
        """The value that a piece of the document stands for.

        Raises:
            StateError: The state is damaged.
        """
        try:
            return decode(encoded, self.arrays)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise _unreadable("The state", f"a value in it is damaged ({type(error).__name__}: {error})") from None

    def to_bytes(self) -> bytes:
        """The state as a file of safetensors, with the JSON in its metadata."""
        metadata = {_DOCUMENT: json.dumps(self.document, allow_nan=False, separators=(",", ":"))}
        return bytes(save_arrays(self.arrays, metadata=metadata))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, which is whole or absent whatever happens meanwhile.

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
                f"{target} cannot be written ({error.strerror or error}), so the state was not saved; what stood there before is "
                "unharmed. Make room, or give a place that you may write to.",
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """The state as a dictionary of texts and tensors of PyTorch, to put into what `torch.save` saves.

        `torch.load` loads it with `weights_only=True`.
        """
        torch = keeper("torch")
        tensors = {name: torch.from_array(array, {}) for name, array in self.arrays.items()}
        return {"format": FORMAT, "document": json.dumps(self.document, allow_nan=False), "tensors": tensors}

    def to_tree(self) -> dict[str, np.ndarray[Any, Any]]:
        """The state as a tree of arrays, to put into what Orbax saves; one array of bytes, so that no number is converted."""
        return {_DOCUMENT: np.frombuffer(self.to_bytes(), dtype=np.uint8)}

    def __repr__(self) -> str:
        """What was captured, in one line."""
        gaps = f", {len(self.gaps)} gaps" if self.gaps else ""
        return f"<determinism state: generators of {', '.join(self.document['generators'])}; parts {', '.join(self.parts) or 'none'}{gaps}>"


def load(path: str | os.PathLike[str]) -> State:
    """Read a state that `State.save` wrote. Nothing in the file is run.

    Args:
        path: The file.

    Raises:
        StateError: It does not exist, is no state, is damaged, or was written by a newer version.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(str(path), error.strerror or str(error)) from None
    return from_bytes(data, str(path))


def from_bytes(data: bytes, name: str = "The data") -> State:
    """Read a state that `State.to_bytes` gave. Nothing in it is run.

    Args:
        data: The bytes.
        name: What messages call them.

    Raises:
        StateError: They are no state, damaged, or of a newer version.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        text = header["__metadata__"][_DOCUMENT]
        arrays = load_arrays(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(name, f"it is no state, or damaged ({type(error).__name__}: {error})") from None
    return _checked(text, dict(arrays), name)


def from_dict(saved: Mapping[str, Any]) -> State:
    """Read a state that `State.to_dict` gave.

    Args:
        saved: The dictionary.

    Raises:
        StateError: It is no state, damaged, or of a newer version.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    try:
        for name, tensor in saved["tensors"].items():
            arrays[name] = np.array(tensor.cpu().numpy())
        text = saved["document"]
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable("The dictionary", f"it is no state ({type(error).__name__}: {error})") from None
    return _checked(text, arrays, "The dictionary")


def from_tree(tree: Mapping[str, Any]) -> State:
    """Read a state that `State.to_tree` gave, as Orbax restores it: as arrays of NumPy or of JAX.

    Args:
        tree: The tree.

    Raises:
        StateError: It is no state, damaged, or of a newer version.
    """
    try:
        data = np.asarray(tree[_DOCUMENT], dtype=np.uint8).tobytes()
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable("The tree", f"it is no state ({type(error).__name__}: {error})") from None
    return from_bytes(data, "The tree")


_KEYS = ("surroundings", "settings", "seeds", "unseeded", "generators", "registered", "parts", "gaps")


def _checked(text: str, arrays: dict[str, np.ndarray[Any, Any]], name: str) -> State:
    try:
        document = json.loads(text)
        found = str(document["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(name, f"it is no state, or damaged ({type(error).__name__}: {error})") from None
    number = found.removeprefix(_FAMILY)
    if number.isdecimal() and int(number) > _VERSION:
        raise StateError(
            "state-newer",
            f"{name} is in the format {found}, and this version of determinism reads {FORMAT}, so nothing was loaded. Install "
            f"determinism {document.get('determinism', 'of the version that saved it')} or newer.",
        )
    missing = [key for key in _KEYS if key not in document]
    if found != FORMAT or missing:
        raise _unreadable(name, f"its format is {found!r} and it lacks {', '.join(missing) or 'nothing'}")
    return State(document, arrays)


def _unreadable(name: str, reason: str) -> StateError:
    return StateError(
        "state-unreadable",
        f"{name} cannot be read as a state: {reason}. Nothing was put back. Give what State.save, to_bytes or to_dict made.",
    )
