"""Seeds PyTorch's generators, on the CPU and on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.state import capture_generators, restore_generators, undisturbed
from determinism.seeds.streams import Streams

_ACCELERATORS = ("cuda", "xpu")
_STATE_WORDS = 624
"""Of the Mersenne Twister that draws on the CPU."""
_STATE_BEGIN = 24
"""Byte of its state where the words begin, each in eight bytes."""


def seed(streams: Streams) -> None:
    """Seed the default generators; a device that is not in use yet is seeded when it comes into use."""
    fill(torch.default_generator, streams, "default")
    for name in _ACCELERATORS:
        module = getattr(torch, name, None)
        if module is None or not module.is_available():
            continue
        for index in range(module.device_count()):
            value = streams.integer("torch", name, index, bits=64)
            # Runs now if the device is in use, else when it comes into use: after whatever was asked for before.
            module._lazy_call(lambda module=module, index=index, value=value: _seed_device(module, index, value))
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(streams.integer("torch", "mps", bits=63))


def _seed_device(module: Any, index: int, value: int) -> None:
    module.default_generators[index].manual_seed(value)


def generator(streams: Streams, name: str, device: str = "cpu") -> torch.Generator:
    """A generator with a stream of its own.

    Args:
        streams: The place that it draws for.
        name: Tells it from others.
        device: Where it draws.
    """
    made = torch.Generator(device)
    fill(made, streams, name)
    return made


def fill(generator: torch.Generator, streams: Streams, name: str) -> None:
    """Seed one generator.

    `manual_seed` of a CPU generator keeps 32 of its 64 bits (ATen/core/MT19937RNGEngine.h), so two of 65,000 streams would be
    the same with a probability of 0.4. Therefore the words of its state are written as well; the seed that it names stays.

    Args:
        generator: The generator.
        streams: The place that it draws for.
        name: Tells it from others.
    """
    device = generator.device
    names = ("torch", device.type, device.index or 0, name)
    value = streams.integer(*names, bits=64)
    generator.manual_seed(value)
    if device.type == "cpu":
        with undisturbed():
            _fill_state(generator, value & 0xFFFFFFFF, streams.words(*names, "state", count=_STATE_WORDS))


def _fill_state(generator: torch.Generator, seed: int, words: list[int]) -> None:
    state = generator.get_state()
    present = state[_STATE_BEGIN : _STATE_BEGIN + 8 * _STATE_WORDS].clone()
    if present.numel() != 8 * _STATE_WORDS or not _holds_expansion(present.view(torch.int64), seed):
        # A version that keeps its state otherwise; its seed is all there is to set.
        return
    filled = torch.tensor(words, dtype=torch.int64)
    # The twister gives nothing but zeros from a state of zeros; its first word counts with its highest bit only.
    filled[0] |= 0x80000000
    state[_STATE_BEGIN : _STATE_BEGIN + 8 * _STATE_WORDS] = filled.view(torch.uint8)
    generator.set_state(state)


def _holds_expansion(words: torch.Tensor, seed: int) -> bool:
    """Whether the words are what a Mersenne Twister makes of a seed of 32 bits."""
    first, second = words[:2].tolist()
    return first == seed and second == (1812433253 * (seed ^ (seed >> 30)) + 1) & 0xFFFFFFFF


def capture() -> Callable[[], None]:
    """Note the states of the default generators.

    Returns:
        What puts them back.
    """
    states = capture_generators()
    return lambda: restore_generators(states)


def reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    """What seeds a generator of PyTorch's; None if the thing is none.

    Args:
        thing: What was registered.
        name: Under which name.
    """
    if not isinstance(thing, torch.Generator):
        return None
    return lambda streams: fill(thing, streams, name)
