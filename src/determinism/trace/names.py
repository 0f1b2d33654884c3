"""The tables of names of a process: ops, modules, frames, stacks, arguments, layouts."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from determinism.errors import TraceError
from determinism.op_semantics import Op, OpSemantics, semantics_from, semantics_of
from determinism.trace.schema import FIRST_WITH_SEMANTICS, NONE, SHARED, VERSION, Frame, Layout, Table

_Parsed = TypeVar("_Parsed")
_TABLES = frozenset(table.value for table in Table)


class Names:
    """All names of one process, by table and number."""

    def __init__(self, folder: Path, rows: Iterable[tuple[Any, ...]], *, version: int = VERSION) -> None:
        """Sort them by table.

        Args:
            folder: Of the process, which messages name.
            rows: Table, number, text, in the order in which they were written.
            version: Of the format that they were written in.
        """
        self.folder = folder
        self._version = version
        self._texts: dict[Table, list[str]] = {table: [] for table in Table}
        for table, number, text in rows:
            # What is damaged is left out; records that need it are not read either.
            if isinstance(table, int) and table in _TABLES and isinstance(text, str):
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
    def ops(self) -> list[Op]:
        """Every op, by number, with what it does.

        Raises:
            TraceError: The trace is damaged.
        """
        names = self._texts[Table.OP]
        if self._version < FIRST_WITH_SEMANTICS:
            return [Op(name, semantics_of(name)) for name in names]
        meanings = self._texts[Table.SEMANTICS]
        if len(meanings) < len(names):
            raise _damaged(self.folder, f"what {names[len(meanings)][:60]!r} does is missing")
        return [
            Op(*pair) for pair in zip(names, (self._parsed(semantics_from, text) for text in meanings), strict=False)
        ]

    def op(self, number: int) -> Op:
        """One op.

        Raises:
            TraceError: The trace is damaged.
        """
        return self.ops[number]

    def ops_that(self, meanings: OpSemantics) -> list[int]:
        """The numbers of the ops that do one of these things.

        Raises:
            TraceError: The trace is damaged.
        """
        return [number for number, op in enumerate(self.ops) if op.semantics & meanings]

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
            raise _damaged(self.folder, f"{text[:60]!r} is not such an entry") from None


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
    place = (operator.index(offset), operator.index(storage_bytes))
    # Danger: views are laid over memory with these numbers, so no other ones may get through.
    if any(not 0 <= number <= _LARGEST for number in (*sizes[0], *sizes[1], *place)):
        raise ValueError(text)
    layout = Layout(dtype, *sizes, place[0], device, place[1], bool(rest))
    if not layout.is_view and (layout.strides or any(place)):
        raise ValueError(text)
    return layout
