"""Text in columns, one of which is wrapped, with as little to load as possible: a command that looks something up answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

_GAP = 2
_NARROWEST = 24
_LONGEST_WORD = 48
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class Cell(NamedTuple):
    """A piece of text and how it looks."""

    text: str
    style: str | None = None


def styled(cell: Cell, colors: bool) -> str:
    """A piece of text as a terminal shows it.

    Args:
        cell: The text and `bold`, `dim`, `red`, `green` or `yellow`.
        colors: Whether the output understands styles.
    """
    if cell.style is None or not colors or not cell.text.strip():
        return cell.text
    return f"\x1b[{_CODES[cell.style]}m{cell.text}\x1b[0m"


def in_columns(rows: Sequence[Sequence[Cell]], width: int, wrapped: int, colors: bool) -> list[str]:
    """Lay rows out in columns.

    Args:
        rows: All with the same number of cells.
        width: Of the output.
        wrapped: Number of the column that is wrapped to fit in; all others stay as wide as they are.
        colors: Whether the output understands styles.
    """
    if not rows:
        return []
    widths = [max(len(row[column].text) for row in rows) for column in range(len(rows[0]))]
    rest = width - sum(widths) + widths[wrapped] - _GAP * (len(widths) - 1)
    longest = max((len(word) for row in rows for word in row[wrapped].text.split()), default=0)
    # A word is broken only if it is longer than a name may be.
    widths[wrapped] = min(widths[wrapped], max(rest, _NARROWEST, min(longest, _LONGEST_WORD)))
    return [line for row in rows for line in _lines(row, widths, wrapped, colors)]


def paragraph(text: str, width: int, margin: int = 0) -> list[str]:
    """Wrap a text, with a margin on the left."""
    return wrap(text, max(width, _NARROWEST), initial_indent=" " * margin, subsequent_indent=" " * margin)


def _lines(row: Sequence[Cell], widths: list[int], wrapped: int, colors: bool) -> list[str]:
    parts = wrap(row[wrapped].text, widths[wrapped], break_on_hyphens=False) or [""]
    lines = []
    for number, part in enumerate(parts):
        cells = [
            Cell((part if column == wrapped else "" if number else cell.text).ljust(widths[column]), cell.style)
            for column, cell in enumerate(row)
        ]
        lines.append((" " * _GAP).join(styled(cell, colors) for cell in cells).rstrip())
    return lines
