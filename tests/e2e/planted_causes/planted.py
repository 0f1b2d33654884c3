"""A program with a known cause, as text, and the required content of a report on it."""

from __future__ import annotations

import textwrap
from typing import NamedTuple


class Planted(NamedTuple):
    """A program with one cause. Its lines are identified by pieces of text that are in no other line."""

    name: str
    causes: tuple[str, ...]
    """The cause that must be named, followed by others that are equally correct."""
    lines: tuple[str, ...]
    """A piece of the line that must be named first; any of several equally correct ones will do."""
    text: str
    mended: tuple[tuple[str, str], ...]
    """Pieces of the text, each with its replacement in the deterministic twin."""
    modules: tuple[tuple[str, str], ...] = ()
    """Additional files, by their path."""
    is_fixed: bool = True
    """Whether a fix must be verified."""
    statuses: tuple[str, ...] = ("confirmed",)

    @property
    def source(self) -> str:
        """The source of the program."""
        return textwrap.dedent(self.text).lstrip("\n")

    @property
    def twin(self) -> str:
        """The same program without the cause."""
        result = self.source
        for old, new in self.mended:
            assert result.count(old) == 1, (self.name, old)
            result = result.replace(old, new)
        return result

    def named_lines(self) -> set[int]:
        """Return the numbers of the lines, one of which must be named first."""
        found = set()
        for piece in self.lines:
            numbers = [number for number, line in enumerate(self.source.splitlines(), 1) if piece in line]
            assert len(numbers) == 1, (self.name, piece, numbers)
            found.update(numbers)
        return found
