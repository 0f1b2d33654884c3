"""The state of the generators that ops draw random numbers from."""

from __future__ import annotations

from typing import Any

import torch

from determinism.frameworks.torch.tensor_bytes import digest_tensor


def generator_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator that an op will draw from; None if the device has none that can be read."""
    for value in (*kwargs.values(), *args):
        if isinstance(value, torch.Generator):
            return value
    device = kwargs.get("device")
    if not isinstance(device, torch.device):
        device = next((value.device for value in args if isinstance(value, torch.Tensor)), torch.device("cpu"))
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda" and torch.cuda.is_available():
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]
    return None


def state_digest(generator: torch.Generator) -> bytes:
    """Digest of a generator's whole state."""
    return digest_tensor(generator.get_state())
