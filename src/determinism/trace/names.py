"""The tables of names of a process: ops, modules, frames, stacks, arguments, layouts."""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from determinism.trace.schema import NAMES_FILE, NONE, PENDING_NAMES_FILE, Table


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
        self._texts: dict[Table, list[str]] = {table: [] for table in Table}
        for row in (*_stream_rows(folder / NAMES_FILE), *_pending_rows(folder / PENDING_NAMES_FILE)):
            table, number, text = row
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
        """The frames of user code."""
        return [Frame(*json.loads(text)) for text in self._texts[Table.FRAME]]

    @cached_property
    def stack_frames(self) -> list[tuple[int, ...]]:
        """Per stack the numbers of its frames, innermost first."""
        return [tuple(json.loads(text)) for text in self._texts[Table.STACK]]

    def stack(self, number: int) -> tuple[Frame, ...]:
        """The frames of one stack, innermost first; empty for `NONE`."""
        if not NONE < number < len(self.stack_frames):
            return ()
        return tuple(self.frames[frame] for frame in self.stack_frames[number])

    def layout(self, number: int) -> Layout | None:
        """One layout; None for `NONE` and for values that are no tensors."""
        text = self.text(Table.LAYOUT, number)
        return None if text is None else parse_layout(text)


@lru_cache(maxsize=4096)
def parse_layout(text: str) -> Layout | None:
    """Read the text of a layout."""
    fields: list[Any] = json.loads(text)
    if len(fields) != 6:
        return None
    dtype, shape, strides, offset, device, storage_bytes = fields
    return Layout(dtype, tuple(shape), tuple(strides), offset, device, storage_bytes)


def _stream_rows(path: Path) -> list[tuple[int, int, str]]:
    rows: list[tuple[int, int, str]] = []
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                rows.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    except (pa.ArrowInvalid, OSError, EOFError):
        # The process was killed while it wrote: the whole batches count, the pending file has the rest.
        pass
    return rows


def _pending_rows(path: Path) -> list[tuple[int, int, str]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    rows = []
    for line in lines[:-1]:
        table, number, text = json.loads(line)
        rows.append((table, number, text))
    return rows
