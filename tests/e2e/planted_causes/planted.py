"""A program with a known cause, as text, and what a report must say about it."""

from __future__ import annotations

import textwrap
from typing import NamedTuple


class Planted(NamedTuple):
    """A program with one cause. Its lines are told by pieces of their text, which stand in no other line."""

    name: str
    causes: tuple[str, ...]
    """The cause that must be named; others that are equally true follow it."""
    lines: tuple[str, ...]
    """A piece of the line that must be named first, or one of several that are equally true."""
    text: str
    mended: tuple[tuple[str, str], ...]
    """Pieces of the text, and what stands in their place in the twin, which is deterministic."""
    modules: tuple[tuple[str, str], ...] = ()
    """Files beside the program, by their path."""
    is_fixed: bool = True
    """Whether a fix must be verified."""
    statuses: tuple[str, ...] = ("confirmed",)

    @property
    def source(self) -> str:
        """The program."""
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
        """The numbers of the lines of which one must be named first."""
        found = set()
        for piece in self.lines:
            numbers = [number for number, line in enumerate(self.source.splitlines(), 1) if piece in line]
            assert len(numbers) == 1, (self.name, piece, numbers)
            found.update(numbers)
        return found
