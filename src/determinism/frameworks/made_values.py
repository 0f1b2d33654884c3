"""Values that records made, and which of them nobody has read yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from determinism.types import Access

_READ = int(Access.READ)

EXTERNAL = -1
"""Number of the record of a value that nobody recorded making."""


class Value(NamedTuple):
    """What a tensor of the program holds, and who made it."""

    record: int
    output: int
    layout: int
    digest: bytes


class Unread:
    """The values that the program was given, and that no record read.

    NumPy reads the memory of a tensor without any method of it being called, so these may have left the framework.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[int, int], Value] = {}

    def made(self, value: Value) -> None:
        """The program was given a value."""
        if value.record != EXTERNAL:
            self._values[value.record, value.output] = value

    def was_read(self, value: Value) -> None:
        """A record took a value in."""
        self._values.pop((value.record, value.output), None)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)

    def take(self) -> list[Value]:
        """What was given since the last time and not read; oldest first."""
        found = sorted(self._values.values())
        self._values.clear()
        return found

    def read(self, values: Sequence[Value], *, paranoid: bool) -> tuple[list[int], list[int | bytes]]:
        """A record takes values in.

        Args:
            values: Its inputs.
            paranoid: Digest those too that a record made.

        Returns:
            The edges and the digests of the inputs, as the writer of records takes them.
        """
        edges: list[int] = []
        digests: list[int | bytes] = []
        for position, value in enumerate(values):
            edges += (value.record, value.output, _READ, value.layout)
            self.was_read(value)
            if value.record == EXTERNAL or paranoid:
                digests += (position, value.digest)
        return edges, digests
