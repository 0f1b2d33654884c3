"""A state as one safetensors file: bytes of arrays, and JSON for everything else. Loading it executes nothing."""

from __future__ import annotations

import json
import math
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from determinism.errors import StateError
from determinism.frameworks.registry import GENERATOR_STATES
from determinism.settings.surroundings import is_loaded

FORMAT = "determinism.state/1"
_MARKS = ("$array", "$tuple", "$pairs", "$float", "$none")
_PLAIN = (str, int, bool, type(None))


def write(path: Path, contents: dict[str, Any]) -> None:
    """Write a state; the file is there as a whole or not at all.

    Args:
        path: The file.
        contents: Nested dictionaries, lists and tuples of numbers, texts, arrays and tensors.

    Raises:
        StateError: Something in it is none of these.
        OSError: It cannot be written.
    """
    from safetensors.numpy import save

    arrays: dict[str, Any] = {}
    document = _encoded(contents, "state", arrays)
    data = save(arrays, metadata={"format": FORMAT, "state": json.dumps(document, allow_nan=False)})
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """Read a state.

    Args:
        path: The file.

    Raises:
        StateError: It is no state, or one of another version.
        OSError: It cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise StateError(
                    "state-unreadable",
                    f"{path} has the format {metadata.get('format')!r}, and {FORMAT} is read here, so nothing was loaded. Give "
                    "a file that determinism.state.save wrote, with the version of determinism that wrote it.",
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dictionary
        found: dict[str, Any] = _decoded(json.loads(metadata["state"]), arrays)
        return found
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise StateError(
            "state-unreadable",
            f"{path} is no whole state ({type(error).__name__}: {error}), so nothing was loaded. Give another one.",
        ) from None


def _encoded(value: Any, place: str, arrays: dict[str, Any]) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not set(value) & set(_MARKS):
            return {key: _encoded(item, f"{place}.{key}", arrays) for key, item in value.items()}
        pairs = [[key, item] for key, item in value.items()]
        return {"$pairs": [[_encoded(part, f"{place}[{pair[0]!r}]", arrays) for part in pair] for pair in pairs]}
    if isinstance(value, list | tuple):
        items = [_encoded(item, f"{place}[{index}]", arrays) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    taken = _as_array(value)
    if taken is None:
        raise StateError(
            "state-unsavable",
            f"{place} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be written without code that "
            "would run on loading, so nothing was saved. Keep numbers, texts, arrays and tensors in the state.",
        )
    name = f"{len(arrays)}"
    arrays[name], described = taken
    return {"$array": name, **described}


def _as_array(value: Any) -> tuple[Any, dict[str, Any]] | None:
    import numpy as np

    for framework, module in GENERATOR_STATES.items():
        if is_loaded(framework):
            taken = import_module(module).to_array(value)
            if taken is not None:
                return taken[0], {**taken[1], "library": framework}
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        flat = np.ascontiguousarray(value).reshape(-1).view("uint8")
        return flat.copy(), {"dtype": value.dtype.str, "shape": list(value.shape), "library": "numpy"}
    return None


def _decoded(value: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$tuple" in value:
        return tuple(_decoded(item, arrays) for item in value["$tuple"])
    if "$pairs" in value:
        return {_decoded(key, arrays): _decoded(item, arrays) for key, item in value["$pairs"]}
    if "$array" in value:
        data = arrays[value["$array"]]
        if value["library"] == "numpy":
            import numpy as np

            return data.view(np.dtype(value["dtype"])).reshape(value["shape"])
        return import_module(GENERATOR_STATES[value["library"]]).from_array(data, value)
    return {key: _decoded(item, arrays) for key, item in value.items()}
