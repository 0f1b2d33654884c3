"""Seeds the generators of Python and NumPy, and puts them back.

NumPy is never imported here: a program that has not imported it draws nothing from it.
"""

from __future__ import annotations

import random
import sys

from determinism.seeds.streams import Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_WORDS = 16
"""512 bits. Seeds of 32 bits would give two of 65,000 streams the same numbers with a probability of 0.4."""


def seed_python(streams: Streams) -> None:
    """Seed the functions of the module `random`."""
    random.seed(streams.integer("python", bits=512))


def seed_numpy(streams: Streams) -> None:
    """Seed the functions of `numpy.random`, if NumPy's generators are loaded."""
    module = numpy_random()
    if module is not None:
        module.seed(streams.words("numpy", count=_WORDS))


def numpy_random() -> ModuleType | None:
    """The module `numpy.random`; None before the program has loaded it."""
    module = sys.modules.get("numpy.random")
    # A module that is still being imported has no generator yet.
    return module if hasattr(module, "get_state") else None


def capture_python() -> Callable[[], None]:
    """Note the state of the module `random`.

    Returns:
        What puts it back.
    """
    state = random.getstate()
    return lambda: random.setstate(state)


def capture_numpy() -> Callable[[], None]:
    """Note the state of `numpy.random`, if it is loaded.

    Returns:
        What puts it back.
    """
    module = numpy_random()
    if module is None:
        return lambda: None
    state = module.get_state(legacy=False)
    return lambda: module.set_state(state)


def python_generator(streams: Streams, name: str) -> random.Random:
    """A generator of Python's with a stream of its own."""
    return random.Random(streams.integer("python", "generator", name, bits=512))


def numpy_generator(streams: Streams, name: str) -> Any:
    """A `numpy.random.Generator` with a stream of its own."""
    from numpy.random import PCG64, Generator, SeedSequence

    return Generator(PCG64(SeedSequence(streams.words("numpy", "generator", name, count=_WORDS))))


class UnseededNumpy:
    """Gives NumPy's generators that are made without a seed one, instead of the system's entropy.

    They all ask `numpy.random.bit_generator.randbits` (a name of that module, imported from `secrets`) for their entropy:
    `SeedSequence()`, and through it `default_rng()`, each bit generator and `RandomState()`.
    """

    def __init__(self, streams: Callable[[], Streams]) -> None:
        """Take what tells the place that the program is at."""
        self._streams = streams
        self._counts: dict[Streams, int] = {}
        self._original: Callable[[int], int] | None = None

    def install(self) -> str | None:
        """Take the place of the system's entropy; NumPy must be loaded.

        Returns:
            Why that is not possible; None if it was done.
        """
        module = sys.modules.get("numpy.random.bit_generator")
        original = getattr(module, "randbits", None)
        if module is None or original is None:
            return "this NumPy takes its entropy from elsewhere than numpy.random.bit_generator.randbits"
        if self._original is None:
            self._original = original
            module.randbits = self._randbits  # type: ignore[attr-defined]
        return None

    def restart(self) -> None:
        """Begin again with the first seed of each place."""
        self._counts.clear()

    @property
    def count(self) -> int:
        """How many seeds were given at the place that the program is at."""
        return self._counts.get(self._streams(), 0)

    def go_on_after(self, count: int) -> None:
        """Go on as if so many seeds had been given at this place.

        Args:
            count: How many.
        """
        self._counts[self._streams()] = count

    def remove(self) -> None:
        """Give the system's entropy its place back."""
        module = sys.modules.get("numpy.random.bit_generator")
        # Whoever put something else there meanwhile keeps it.
        if module is not None and self._original is not None and getattr(module, "randbits", None) == self._randbits:
            module.randbits = self._original  # type: ignore[attr-defined]
        self._original = None

    def _randbits(self, bits: int) -> int:
        streams = self._streams()
        count = self._counts.get(streams, 0)
        self._counts[streams] = count + 1
        return streams.integer("numpy", "unseeded", count, bits=bits)
