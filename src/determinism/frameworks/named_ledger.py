"""Writes the ledger of a process of a framework that lets nobody see how tensors lie in memory: what each step had, by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from determinism.frameworks.made_values import Value
from determinism.frameworks.named_stream import Stream
from determinism.trace.ledger import LedgerWriter, group_digest, value_line

_GROUPS = {"parameter": "parameters", "optimizer state": "optimizer", "buffer": "buffers"}


class NamedLedger:
    """Collects what a step had, and adds a row when it ends."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        """Make the file.

        Args:
            folder: Of the process.
            stream: Knows the layouts of values by their numbers.

        Raises:
            OSError: It cannot be made.
        """
        self._writer = LedgerWriter(folder)
        self._stream = stream
        self._values: dict[str, list[str]] = {}
        self._loss: float | None = None

    def loss(self, values: Iterable[Value], number: float | None) -> None:
        """A loss of the step.

        Args:
            values: What it is.
            number: The same, where it is one.
        """
        self._add("loss", values)
        self._loss = number

    def end_step(self, step: int, held: Iterable[tuple[str, Value]], generators: Sequence[bytes]) -> None:
        """Add the row of a step.

        Args:
            step: Its number.
            held: Sort and value of everything that the program holds.
            generators: Digests of the states of generators.
        """
        for sort, value in held:
            if sort in _GROUPS:
                self._add(_GROUPS[sort], [value])
        values, self._values = self._values, {}
        loss, self._loss = self._loss, None
        self._writer.add(step, {group: group_digest(group, lines) for group, lines in values.items()}, generators, loss)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, group: str, values: Iterable[Value]) -> None:
        lines = [value_line(self._stream.form_of(value.layout), value.digest) for value in values]
        if lines:
            self._values.setdefault(group, []).extend(lines)
