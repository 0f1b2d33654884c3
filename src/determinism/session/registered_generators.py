"""Generators of the program's own and of third parties, which are seeded along with all others."""

from __future__ import annotations

import random
import sys
from importlib import import_module

from determinism.errors import UsageError
from determinism.frameworks.registry import SEEDERS
from determinism.seeds.streams import Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WORDS = 16


class RegisteredGenerators:
    """What was registered in a process, by name."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Any, Callable[[Streams], None], bool]] = {}
        self._made = 0

    def add(self, thing: Any, *, name: str | None, shared: bool) -> tuple[str, Callable[[Streams], None]]:
        """Register a generator.

        Args:
            thing: A generator of Python, NumPy or a loaded framework, or a function that takes a number of 32 bits.
            name: Its stream's name; None numbers it.
            shared: Whether all ranks give it the same stream.

        Returns:
            Its name, and what seeds it.

        Raises:
            UsageError: It is none of these, or the name is taken.
        """
        if name is None:
            name = f"registered {self._made}"
            self._made += 1
        if name in self._entries:
            raise UsageError(
                "generator-name-taken",
                f"A generator is registered under the name {name!r} already; with the same name both would draw the same "
                "numbers. Give another name, or unregister the other one.",
            )
        seed = _reseeder(thing, name)
        if seed is None:
            raise UsageError(
                "generator-unknown",
                f"{type(thing).__qualname__} is no generator that can be seeded, so it was not registered. Give a "
                "random.Random, a numpy.random.Generator or RandomState, a torch.Generator, a tf.random.Generator, or a "
                "function that takes a seed.",
            )
        entry = (lambda streams: seed(streams.shared)) if shared else seed
        self._entries[name] = (thing, entry, shared)
        return name, entry

    def remove(self, thing: Any) -> None:
        """Forget a generator.

        Args:
            thing: What was registered, or its name.

        Raises:
            UsageError: It is not registered.
        """
        # Methods of an object are made anew at each access, and then are equal, not the same.
        names = [
            name for name, entry in self._entries.items() if name == thing or entry[0] is thing or entry[0] == thing
        ]
        if not names:
            raise UsageError(
                "generator-not-registered",
                f"{thing!r} is not registered, so there is nothing to forget. Registered are: "
                f"{', '.join(self._entries) or 'none'}.",
            )
        for name in names:
            del self._entries[name]

    def things(self) -> dict[str, Any]:
        """What was registered, by name."""
        return {name: thing for name, (thing, _, _) in self._entries.items()}

    def seed(self, streams: Streams) -> None:
        """Seed all of them.

        Args:
            streams: The place that the program is at.
        """
        for _, seed, _ in list(self._entries.values()):
            seed(streams)


def _reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    if isinstance(thing, random.Random):
        return lambda streams: thing.seed(streams.integer("registered", name, bits=512))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(thing, numpy.RandomState):
        return lambda streams: thing.seed(streams.words("registered", name, count=_WORDS))
    if numpy is not None and isinstance(thing, numpy.Generator):
        return lambda streams: _seed_numpy_generator(thing, streams.words("registered", name, count=_WORDS))
    for framework, module in SEEDERS.items():
        if framework in sys.modules:
            found: Callable[[Streams], None] | None = import_module(module).reseeder(thing, name)
            if found is not None:
                return found
    if callable(thing):
        # Functions that take a seed are NumPy's and TensorFlow's kind at best; more than 32 bits they refuse.
        return lambda streams: thing(streams.integer("registered", name, bits=32))
    return None


def _seed_numpy_generator(generator: Any, words: list[int]) -> None:
    """Give a `numpy.random.Generator` the state of a new one of its kind."""
    from numpy.random import SeedSequence

    kind = type(generator.bit_generator)
    generator.bit_generator.state = kind(SeedSequence(words)).state
