"""The tables of names of a process: ops, modules, frames, stacks, arguments, layouts."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from determinism.errors import TraceError
from determinism.trace.batches import NAMES_SCHEMA
from determinism.trace.files import read_plain
from determinism.trace.schema import NAMES_FILE, NONE, PENDING_NAMES_FILE, SHARED, Table
from determinism.trace.stream import read_table

_Parsed = TypeVar("_Parsed")
_Row = tuple[Any, ...]
_MOST_PENDING_BYTES = 256 << 20
_TABLES = frozenset(table.value for table in Table)


class Frame(NamedTuple):
    """One frame of user code."""

    file: str
    line: int
    function: str
    code: str


class Layout(NamedTuple):
    """How a tensor looks at its memory; strides and offset count elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    device: str
    storage_bytes: int
    is_shared: bool = False
    """Whether other processes may write the memory."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class Names:
    """All names of one process, by table and number."""

    def __init__(self, folder: Path) -> None:
        """Read them; what a killed process did not get into the stream is taken from its pending file."""
        self.folder = folder
        self._texts: dict[Table, list[str]] = {table: [] for table in Table}
        for rows in (_stream_rows(folder / NAMES_FILE), _pending_rows(folder / PENDING_NAMES_FILE)):
            for table, number, text in rows:
                if not (isinstance(table, int) and table in _TABLES and isinstance(text, str)):
                    # Damaged from here on; records that need what is missing are not read either.
                    break
                texts = self._texts[Table(table)]
                if number == len(texts):
                    texts.append(text)

    def texts(self, table: Table) -> list[str]:
        """Every row of a table, by number."""
        return self._texts[table]

    def text(self, table: Table, number: int) -> str | None:
        """One row; None for `NONE`."""
        texts = self._texts[table]
        return texts[number] if NONE < number < len(texts) else None

    @cached_property
    def frames(self) -> list[Frame]:
        """The frames of user code.

        Raises:
            TraceError: The trace is damaged.
        """
        return [self._parsed(_parse_frame, text) for text in self._texts[Table.FRAME]]

    @cached_property
    def stack_frames(self) -> list[tuple[int, ...]]:
        """Per stack the numbers of its frames, innermost first.

        Raises:
            TraceError: The trace is damaged.
        """
        stacks = [self._parsed(_parse_stack, text) for text in self._texts[Table.STACK]]
        if any(not 0 <= number < len(self.frames) for stack in stacks for number in stack):
            raise _damaged(self.folder, "a stack names a frame that is not there")
        return stacks

    def stack(self, number: int) -> tuple[Frame, ...]:
        """The frames of one stack, innermost first; empty for `NONE`."""
        if not NONE < number < len(self.stack_frames):
            return ()
        return tuple(self.frames[frame] for frame in self.stack_frames[number])

    def frame(self, text: str) -> Frame:
        """A frame that stands elsewhere in the trace, as JSON.

        Raises:
            TraceError: The trace is damaged.
        """
        return self._parsed(_parse_frame, text)

    def layout(self, number: int) -> Layout | None:
        """One layout; None for `NONE` and for values that are no tensors.

        Raises:
            TraceError: The trace is damaged.
        """
        text = self.text(Table.LAYOUT, number)
        return None if text is None else self._parsed(parse_layout, text)

    def _parsed(self, parse: Callable[[str], _Parsed], text: str) -> _Parsed:
        try:
            return parse(text)
        except (ValueError, TypeError, RecursionError):
            raise _damaged(self.folder, f"{text[:60]!r} is no such entry") from None


def _damaged(folder: Path, found: str) -> TraceError:
    return TraceError(
        "trace-damaged",
        f"The names in {folder} cannot be read ({found}), so this trace is damaged. Record the run again.",
    )


def _parse_frame(text: str) -> Frame:
    file, line, function, code = json.loads(text)
    if not (isinstance(line, int) and all(isinstance(part, str) for part in (file, function, code))):
        raise TypeError(text)
    return Frame(file, line, function, code)


def _parse_stack(text: str) -> tuple[int, ...]:
    return tuple(operator.index(number) for number in json.loads(text))


_LARGEST = 1 << 62
"""Of the sizes, strides and places in a layout."""


@lru_cache(maxsize=4096)
def parse_layout(text: str) -> Layout | None:
    """Read the text of a layout.

    Raises:
        ValueError: It is none.
        TypeError: It is none.
    """
    fields: list[Any] = json.loads(text)
    if len(fields) not in (6, 7):
        return None
    dtype, shape, strides, offset, device, storage_bytes, *rest = fields
    if not (isinstance(dtype, str) and isinstance(device, str) and rest in ([], [SHARED])):
        raise TypeError(text)
    sizes = (tuple(map(operator.index, shape)), tuple(map(operator.index, strides)))
    numbers = [*sizes[0], *sizes[1], operator.index(offset), operator.index(storage_bytes)]
    # Danger: views are laid over memory with these numbers, so no other ones may get through.
    if len(sizes[0]) != len(sizes[1]) or any(not 0 <= number <= _LARGEST for number in numbers):
        raise ValueError(text)
    return Layout(dtype, *sizes, operator.index(offset), device, operator.index(storage_bytes), bool(rest))


def _stream_rows(path: Path) -> Iterator[_Row]:
    try:
        yield from read_table(path, NAMES_SCHEMA)
    except (OSError, ValueError):
        # The process was killed while it wrote: the whole batches count, the pending file has the rest.
        return


def _pending_rows(path: Path) -> Iterator[_Row]:
    try:
        lines = read_plain(path, most=_MOST_PENDING_BYTES).split(b"\n")
    except OSError:
        return
    for line in lines[:-1]:
        try:
            table, number, text = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return
        yield table, number, text
