"""A stream of records and the numbers of its names, for frameworks that do not expose the memory layout of tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from determinism.frameworks.made_values import Value
from determinism.op_semantics import semantics_of
from determinism.sites import SiteTable
from determinism.trace.ledger import LedgerWriter, form_text, group_digest, value_line
from determinism.trace.schema import Layout, Table
from determinism.trace.writer import ProcessWriter

_MOST_TEXTS = 20_000
_VALUE = form_text(None)


class Stream:
    """A writer, and the numbers of the names written so far."""

    def __init__(self, writer: ProcessWriter) -> None:
        """Take the writer of the records."""
        self.writer = writer
        self.sites = SiteTable(lambda t: writer.name(Table.FRAME, t), lambda t: writer.name(Table.STACK, t))
        self._numbers: dict[tuple[Table, str], int] = {}
        self._layouts: dict[tuple[str, tuple[int, ...], str], int] = {}
        self._forms: dict[int, str] = {}
        """The form of a tensor in a ledger, by the number of its layout."""
        self.value_layout = self._number(Table.LAYOUT, json.dumps(["value"]))
        """The layout of a value that is not a tensor: a string, or the content of a resource."""

    def _number(self, table: Table, text: str) -> int:
        number = self._numbers.get((table, text))
        if number is None:
            if len(self._numbers) >= _MOST_TEXTS:
                # Forgetting keeps memory bounded; the same text may then get a second number.
                self._numbers.clear()
            number = self._numbers[table, text] = self.writer.name(table, text)
        return number

    def op(self, name: str) -> int:
        """The number of an op's name."""
        number = self._numbers.get((Table.OP, name))
        if number is None:
            number = self._numbers[Table.OP, name] = self.writer.op(name, semantics_of(name))
        return number

    def module(self, path: str) -> int:
        """The number of a layer's path; -1 if there is none."""
        return self._number(Table.MODULE, path) if path else -1

    def arguments(self, text: str) -> int:
        """The number of the text of arguments; -1 if there are none."""
        return self._number(Table.ARGUMENTS, text) if text else -1

    def layout(self, dtype: str, shape: Sequence[int], device: str) -> int:
        """The number of the layout for a dtype, shape and device; the strides are those of a contiguous tensor."""
        key = (dtype, tuple(shape), device)
        number = self._layouts.get(key)
        if number is None:
            strides = [1] * len(shape)
            for at in range(len(shape) - 2, -1, -1):
                strides[at] = strides[at + 1] * max(shape[at + 1], 1)
            text = json.dumps([dtype, list(shape), strides, 0, device, 0])
            number = self._layouts[key] = self.writer.name(Table.LAYOUT, text)
            self._forms[number] = form_text(Layout(dtype, tuple(shape), (), 0, "", 0))
        return number

    def form_of(self, layout: int) -> str:
        """The form of a tensor, by the number of its layout."""
        return self._forms.get(layout, _VALUE)


# Writes the ledger of a process for such a framework: the digests of each step, by group.

_GROUPS = {"parameter": "parameters", "optimizer state": "optimizer", "buffer": "buffers"}


class NamedLedger:
    """Collects the values of a step, and adds a row when it ends."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        """Create the file.

        Args:
            folder: Folder of the process.
            stream: Has the forms of values by the numbers of their layouts.

        Raises:
            OSError: It cannot be created.
        """
        self._writer = LedgerWriter(folder)
        self._stream = stream
        self._values: dict[str, list[str]] = {}
        self._loss: float | None = None

    def loss(self, values: Iterable[Value], number: float | None) -> None:
        """Add a loss of the step.

        Args:
            values: The values of the loss.
            number: The loss as a number, if it is a single one.
        """
        self._add("loss", values)
        self._loss = number

    def end_step(self, step: int, held: Iterable[tuple[str, Value]], generators: Sequence[bytes]) -> None:
        """Add the row of a step.

        Args:
            step: Its number.
            held: Kind and value of everything that the program holds.
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
