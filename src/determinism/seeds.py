"""Streams of seeds for all generators, and the generators that Python and NumPy keep for the process."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from dataclasses import dataclass, replace

from determinism.errors import UsageError

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


# Derives independent streams from one master seed with a keyed hash.
#
# Adding numbers (master + rank, master + epoch) gives rank 1 of epoch 0 the stream of rank 0 of epoch 1. A hash does
# not: two streams are equal only if everything that identifies them is.

_PERSON = b"determinism/seed"
"""Distinguishes these hashes from other uses of BLAKE2b with the same key; sixteen bytes, as in RFC 7693."""

_MOST_MASTER_BITS = 504
"""A key of BLAKE2b has at most 64 bytes; one bit is for the sign."""


@dataclass(frozen=True, slots=True)
class Streams:
    """A place in a program and its streams of random numbers."""

    master: int
    rank: int | None = 0
    """None for streams that all ranks share."""
    worker: int | None = None
    """Number of the worker process that loads data; None for the process itself."""
    epoch: int = 0
    task: str | int = "main"
    """What the program is doing, such as "train" or "evaluate". The number 1 and the string "1" are different tasks."""
    process: str = ""
    """Distinguishes processes with the same rank, such as "SpawnProcess-2"; empty for the first."""

    def __post_init__(self) -> None:
        _require_integer("master", self.master)
        if self.master.bit_length() > _MOST_MASTER_BITS:
            raise _refusal("master", self.master, f"an integer of at most {_MOST_MASTER_BITS} bits")
        for name in ("rank", "worker"):
            if getattr(self, name) is not None:
                _require_integer(name, getattr(self, name))
        _require_integer("epoch", self.epoch)
        if not isinstance(self.task, str):
            _require_integer("task", self.task, otherwise="a name, or a non-negative integer")

    @property
    def shared(self) -> Streams:
        """The streams that all ranks share, for the same worker, epoch and task."""
        return replace(self, rank=None, process="")

    def moved(self, **changes: Any) -> Streams:
        """Return the streams of another place.

        Args:
            **changes: `rank`, `worker`, `epoch`, `task` or `process`.
        """
        return replace(self, **changes)

    def digest(self, *names: str | int, size: int = 32) -> bytes:
        """Return the bytes that seed one stream.

        Args:
            *names: Names of the user of the stream, such as "numpy", or ("torch", "cuda", 1).
            size: Number of bytes.
        """
        place = [self.rank, self.worker, self.epoch, self.task, self.process, list(names)]
        # JSON distinguishes 1 from "1" and null, and delimits names whatever they contain.
        message = json.dumps(place, ensure_ascii=True, separators=(",", ":")).encode()
        key = self.master.to_bytes(self.master.bit_length() // 8 + 1, "little", signed=True)
        seed = hashlib.blake2b(message, key=key, person=_PERSON, digest_size=64).digest()
        return seed[:size] if size <= len(seed) else hashlib.shake_256(_PERSON + seed).digest(size)

    def integer(self, *names: str | int, bits: int) -> int:
        """Return a number that seeds one stream, from 0 to 2**bits - 1.

        Args:
            *names: Names of the user of the stream.
            bits: Number of bits.
        """
        return int.from_bytes(self.digest(*names, size=(bits + 7) // 8), "little") & ((1 << bits) - 1)

    def words(self, *names: str | int, count: int) -> list[int]:
        """Return 32-bit numbers that seed one stream.

        Args:
            *names: Names of the user of the stream.
            count: Number of numbers.
        """
        data = self.digest(*names, size=4 * count)
        return [int.from_bytes(data[index : index + 4], "little") for index in range(0, 4 * count, 4)]


def _require_integer(name: str, value: object, *, otherwise: str = "a non-negative integer") -> None:
    # A bool is an int, but `rank=True` is a mistake. So is a negative seed, which most generators refuse.
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _refusal(name, value, otherwise)


def _refusal(name: str, value: object, wanted: str) -> UsageError:
    return UsageError(
        "seed-unusable",
        f"{name}={value!r} cannot name a stream of random numbers, so nothing was seeded. Give {wanted}.",
    )


# Seeds and restores the generators of Python and NumPy.
#
# NumPy is never imported here: a program that has not imported it draws nothing from it.

_WORDS = 16
"""512 bits. With 32-bit seeds, two of 65,000 streams would have the same numbers with a probability of 0.4."""


def seed_python(streams: Streams) -> None:
    """Seed the functions of the module `random`."""
    random.seed(streams.integer("python", bits=512))


def seed_numpy(streams: Streams) -> None:
    """Seed the functions of `numpy.random`, if NumPy's generators are loaded."""
    module = numpy_random()
    if module is not None:
        module.seed(streams.words("numpy", count=_WORDS))


def numpy_random() -> ModuleType | None:
    """Return the module `numpy.random`; None before the program has loaded it."""
    module = sys.modules.get("numpy.random")
    # A module that is still being imported has no generator yet.
    return module if hasattr(module, "get_state") else None


def capture_python() -> Callable[[], None]:
    """Capture the state of the module `random`.

    Returns:
        A function that restores it.
    """
    state = random.getstate()
    return lambda: random.setstate(state)


def capture_numpy() -> Callable[[], None]:
    """Capture the state of `numpy.random`, if it is loaded.

    Returns:
        A function that restores it.
    """
    module = numpy_random()
    if module is None:
        return lambda: None
    state = module.get_state(legacy=False)
    return lambda: module.set_state(state)


def python_generator(streams: Streams, name: str) -> random.Random:
    """Return a generator of Python with its own stream."""
    return random.Random(streams.integer("python", "generator", name, bits=512))


def numpy_generator(streams: Streams, name: str) -> Any:
    """Return a `numpy.random.Generator` with its own stream."""
    from numpy.random import PCG64, Generator, SeedSequence

    return Generator(PCG64(SeedSequence(streams.words("numpy", "generator", name, count=_WORDS))))


class UnseededNumpy:
    """Seeds NumPy generators that are created without a seed, in place of the system's entropy.

    They all get their entropy from `numpy.random.bit_generator.randbits` (a name in that module, imported from
    `secrets`): `SeedSequence()`, and through it `default_rng()`, each bit generator and `RandomState()`.
    """

    def __init__(self, streams: Callable[[], Streams]) -> None:
        """Take a function that returns the streams at the program's current place."""
        self._streams = streams
        self._counts: dict[Streams, int] = {}
        self._original: Callable[[int], int] | None = None

    def install(self) -> str | None:
        """Replace the system's entropy; NumPy must be loaded.

        Returns:
            Why that is impossible; None if it was done.
        """
        module = sys.modules.get("numpy.random.bit_generator")
        original = getattr(module, "randbits", None)
        if module is None or original is None:
            return "this NumPy does not take its entropy from numpy.random.bit_generator.randbits"
        if self._original is None:
            self._original = original
            module.randbits = self._randbits  # type: ignore[attr-defined]
        return None

    def restart(self) -> None:
        """Start again with the first seed of each place."""
        self._counts.clear()

    @property
    def count(self) -> int:
        """How many seeds have been given at the current place."""
        return self._counts.get(self._streams(), 0)

    def go_on_after(self, count: int) -> None:
        """Continue as if a number of seeds had been given at this place.

        Args:
            count: Number of seeds.
        """
        self._counts[self._streams()] = count

    def remove(self) -> None:
        """Restore the system's entropy."""
        module = sys.modules.get("numpy.random.bit_generator")
        # Another replacement that was installed meanwhile is kept.
        if module is not None and self._original is not None and getattr(module, "randbits", None) == self._randbits:
            module.randbits = self._original  # type: ignore[attr-defined]
        self._original = None

    def _randbits(self, bits: int) -> int:
        streams = self._streams()
        count = self._counts.get(streams, 0)
        self._counts[streams] = count + 1
        return streams.integer("numpy", "unseeded", count, bits=bits)
