"""PyTorch's tensors and generator states in the forms that a saved state has."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from determinism.frameworks.torch.state import (
    GeneratorStates,
    capture_generators,
    restore_generators,
    undisturbed,
)

_PLAIN = (
    (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if hasattr(torch.nn, "Buffer")
    else (torch.Tensor, torch.nn.Parameter)
)
_DEVICES = ("cuda", "xpu")


def generator_states() -> dict[str, Any]:
    """The states of the default generators of every device; None for a device that is not in use yet."""
    with undisturbed():
        states = capture_generators()
    return {"cpu": states.cpu, "devices": dict(states.devices)}


def restore_generator_states(states: dict[str, Any]) -> None:
    """Put them back; devices that were in use are put into use."""
    for name in _DEVICES:
        module = getattr(torch, name, None)
        if states["devices"].get(name) is not None and module is not None and module.is_available():
            module.init()
            # Fewer devices than there were, if that was allowed.
            states["devices"][name] = states["devices"][name][: module.device_count()]
    with undisturbed():
        restore_generators(GeneratorStates(states["cpu"], states["devices"]))


def rank() -> tuple[int, int] | None:
    """Number of this process in the process group, and how many there are; None without a group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def devices() -> dict[str, int]:
    """How many devices there are, by kind."""
    found = {}
    for name in _DEVICES:
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            found[name] = int(module.device_count())
    return found


def state_of(thing: Any) -> tuple[str, Any] | None:
    """Kind and state of a generator; None if `thing` is none."""
    if not isinstance(thing, torch.Generator):
        return None
    with undisturbed():
        return f"torch.Generator on {thing.device.type}", thing.get_state().clone()


def put_back(thing: torch.Generator, state: torch.Tensor) -> None:
    """Give a generator a state."""
    with undisturbed():
        thing.set_state(state)


def to_array(thing: Any) -> tuple[np.ndarray[Any, Any], dict[str, Any]] | None:
    """A copy of a dense tensor as an array; None if `thing` is no tensor, or one whose bytes do not lie in one piece of memory."""
    if type(thing) not in _PLAIN or thing.layout is not torch.strided or thing.is_quantized or thing.is_nested:
        return None
    with undisturbed():
        copy = thing.detach().to("cpu", copy=True).resolve_conj().resolve_neg().contiguous()
        try:
            return copy.numpy(), {}
        except TypeError:
            # NumPy has no such numbers, bfloat16 for instance.
            described = {"dtype": str(copy.dtype).removeprefix("torch."), "shape": list(copy.shape)}
            return copy.reshape(-1).view(torch.uint8).numpy(), described


def from_array(array: np.ndarray[Any, Any], description: dict[str, Any]) -> torch.Tensor:
    """The tensor, on the CPU.

    Args:
        array: What `to_array` gave.
        description: What came with it.

    Raises:
        ValueError: It names no type of numbers.
    """
    with undisturbed():
        tensor = torch.from_numpy(array.copy(order="C"))
        if "dtype" not in description:
            return tensor
        dtype = getattr(torch, description["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{description['dtype']!r} is no type of numbers")
        if not tensor.numel():
            return torch.empty(description["shape"], dtype=dtype)
        return tensor.view(dtype).reshape(description["shape"])


def gaps() -> list[str]:
    """Nothing is missing: graphs that were compiled draw from the default generators."""
    return []
