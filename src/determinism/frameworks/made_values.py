"""Values that records produced, and which of them have not been read yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from determinism.types import Access

_READ = int(Access.READ)

EXTERNAL = -1
"""Record number of a value that no record produced."""


class Value(NamedTuple):
    """The content of a tensor of the program, and its producer."""

    record: int
    output: int
    layout: int
    digest: bytes


class Unread:
    """The values that the program got and that no record has read.

    NumPy reads the memory of a tensor without calling any of its methods, so these may have left the framework.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[int, int], Value] = {}

    def made(self, value: Value) -> None:
        """Note that the program got a value."""
        if value.record != EXTERNAL:
            self._values[value.record, value.output] = value

    def was_read(self, value: Value) -> None:
        """Note that a record read a value."""
        self._values.pop((value.record, value.output), None)

    def __len__(self) -> int:
        """The number of unread values."""
        return len(self._values)

    def take(self) -> list[Value]:
        """Return the unread values, oldest first, and forget them."""
        found = sorted(self._values.values())
        self._values.clear()
        return found

    def read(self, values: Sequence[Value], *, paranoid: bool) -> tuple[list[int], list[int | bytes]]:
        """Note the inputs of a record.

        Args:
            values: Its inputs.
            paranoid: Whether to include digests of values that a record produced.

        Returns:
            The edges and the digests of the inputs, in the form that the writer takes.
        """
        edges: list[int] = []
        digests: list[int | bytes] = []
        for position, value in enumerate(values):
            edges += (value.record, value.output, _READ, value.layout)
            self.was_read(value)
            if value.record == EXTERNAL or paranoid:
                digests += (position, value.digest)
        return edges, digests
