"""Derives independent streams from one master seed, by a keyed hash.

Adding numbers (master + rank, master + epoch) gives rank 1 of epoch 0 the stream of rank 0 of epoch 1. A hash does not: two
streams are equal only if everything that names them is.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from determinism.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from typing import Any

_PERSON = b"determinism/seed"
"""Keeps these hashes apart from any other use of BLAKE2b with the same key; sixteen bytes, as RFC 7693 has them."""

_MOST_MASTER_BITS = 504
"""A key of BLAKE2b has at most 64 bytes; one bit is for the sign."""


@dataclass(frozen=True, slots=True)
class Streams:
    """A place in a program, and the streams of random numbers that belong to it."""

    master: int
    rank: int | None = 0
    """None stands for streams that all ranks share."""
    worker: int | None = None
    """The worker process that loads data; None for the process itself."""
    epoch: int = 0
    task: str | int = "main"
    """What the program is doing, such as "train" and "evaluate". The number 1 and the text "1" are two tasks."""
    process: str = ""
    """Tells processes with the same rank apart, such as "SpawnProcess-2"; empty for the first."""

    def __post_init__(self) -> None:
        _require_integer("master", self.master, negative=True)
        if self.master.bit_length() > _MOST_MASTER_BITS:
            raise _refusal("master", self.master, f"an integer of at most {_MOST_MASTER_BITS} bits")
        for name in ("rank", "worker"):
            if getattr(self, name) is not None:
                _require_integer(name, getattr(self, name))
        _require_integer("epoch", self.epoch)
        if not isinstance(self.task, str):
            _require_integer("task", self.task, otherwise="a name, or an integer from 0 on")

    @property
    def shared(self) -> Streams:
        """The streams that all ranks share, for the same worker, epoch and task."""
        return replace(self, rank=None, process="")

    def moved(self, **changes: Any) -> Streams:
        """The streams of another place.

        Args:
            **changes: `rank`, `worker`, `epoch`, `task` or `process`.
        """
        return replace(self, **changes)

    def digest(self, *names: str | int, size: int = 32) -> bytes:
        """The bytes that seed one stream.

        Args:
            *names: Who draws from it, such as "numpy", or ("torch", "cuda", 1).
            size: How many bytes.
        """
        place = [self.rank, self.worker, self.epoch, self.task, self.process, list(names)]
        # JSON tells 1 from "1" and null, and where one name ends, whatever the names hold.
        message = json.dumps(place, ensure_ascii=True, separators=(",", ":")).encode()
        key = self.master.to_bytes(self.master.bit_length() // 8 + 1, "little", signed=True)
        seed = hashlib.blake2b(message, key=key, person=_PERSON, digest_size=64).digest()
        return seed[:size] if size <= len(seed) else hashlib.shake_256(_PERSON + seed).digest(size)

    def integer(self, *names: str | int, bits: int) -> int:
        """A number that seeds one stream, from 0 to 2**bits - 1.

        Args:
            *names: Who draws from it.
            bits: How many bits it has; a multiple of eight, or fewer than eight times `size` of them.
        """
        return int.from_bytes(self.digest(*names, size=(bits + 7) // 8), "little") & ((1 << bits) - 1)

    def words(self, *names: str | int, count: int) -> list[int]:
        """Numbers of 32 bits that seed one stream.

        Args:
            *names: Who draws from it.
            count: How many.
        """
        data = self.digest(*names, size=4 * count)
        return [int.from_bytes(data[index : index + 4], "little") for index in range(0, 4 * count, 4)]


def _require_integer(
    name: str, value: object, *, negative: bool = False, otherwise: str = "an integer from 0 on"
) -> None:
    # A bool is an int; but `rank=True` is a mistake.
    if not isinstance(value, int) or isinstance(value, bool) or (value < 0 and not negative):
        raise _refusal(name, value, "an integer" if negative else otherwise)


def _refusal(name: str, value: object, wanted: str) -> UsageError:
    return UsageError(
        "seed-unusable",
        f"{name}={value!r} cannot name a stream of random numbers, so nothing was seeded. Give {wanted}.",
    )
