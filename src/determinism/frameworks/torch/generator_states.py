"""The states of PyTorch's generators and tensors, as what a file can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from determinism.frameworks.torch.state import GeneratorStates, capture_generators, restore_generators

_DTYPES = {str(found).removeprefix("torch."): found for found in vars(torch).values() if isinstance(found, torch.dtype)}


def states() -> dict[str, Any]:
    """The states of the default generators, by device; None for a device that is not in use."""
    found = capture_generators()
    return {"cpu": found.cpu, "devices": dict(found.devices)}


def set_states(saved: dict[str, Any]) -> None:
    """Put the default generators into saved states.

    Args:
        saved: What `states` gave.
    """
    restore_generators(GeneratorStates(saved["cpu"], saved["devices"]))


def device_counts() -> dict[str, int]:
    """How many devices of each kind are in use."""
    return {name: len(found) for name, found in capture_generators().devices.items() if found}


def state_of(thing: Any) -> Any:
    """The state of a generator; None if the thing is none of PyTorch's."""
    return thing.get_state() if isinstance(thing, torch.Generator) else None


def set_state_of(thing: Any, state: Any) -> None:
    """Put a generator into a saved state."""
    thing.set_state(state)


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """A tensor's bytes, and what makes a tensor of them again; None if the thing is no plain tensor.

    Args:
        thing: Anything.
    """
    if not isinstance(thing, torch.Tensor) or thing.layout is not torch.strided:
        return None
    values = thing.detach().cpu().contiguous().reshape(-1)
    data = values.view(torch.uint8).numpy().copy() if values.numel() else np.zeros(0, dtype="uint8")
    return data, {"dtype": str(thing.dtype).removeprefix("torch."), "shape": list(thing.shape)}


def from_array(data: np.ndarray[Any, Any], described: dict[str, Any]) -> torch.Tensor:
    """The tensor that `to_array` took apart, on the CPU."""
    # Only what a dtype is called is looked up: the name comes from a file.
    dtype = _DTYPES[described["dtype"]]
    flat = torch.from_numpy(data.copy()).view(dtype) if data.size else torch.empty(0, dtype=dtype)
    return flat.reshape(described["shape"])
