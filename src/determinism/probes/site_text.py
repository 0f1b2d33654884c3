"""The text by which rewritten code says where it is: a constant, so that it survives pickling and means the same everywhere."""

from __future__ import annotations

import linecache
import os
from dataclasses import dataclass
from functools import cache

from determinism.notebook_cells import cell_name
from determinism.relocation import original_path

_MAX_CODE = 400

UNORDERED = "u"
"""Mark of a place whose result goes straight to what does not mind the order: `sorted`, `set`, `len`."""


@dataclass(frozen=True)
class ProbedSite:
    """A place in user code, as the syntax tree tells it."""

    file: str
    """As the program knows it."""
    line: int
    column: int
    """Of the first byte in its line, in UTF-8."""
    end_line: int
    end_column: int
    """After the last byte."""
    function: str
    is_unordered: bool

    @property
    def original_file(self) -> str:
        """Where the file lies that this one is, or is a copy of; of a notebook, what the cell is called."""
        return cell_name(self.file) or original_path(os.path.abspath(self.file))

    @property
    def code(self) -> str:
        """The line, without its indentation."""
        return linecache.getline(self.file, self.line).strip()[:_MAX_CODE]


def site_text(site: ProbedSite) -> str:
    """The text that stands for a site."""
    mark = UNORDERED if site.is_unordered else ""
    numbers = f"{site.line}:{site.column}:{site.end_line}:{site.end_column}"
    return f"{numbers}:{mark}:{site.function}:{site.file}"


@cache
def parsed(text: str) -> ProbedSite:
    """The site that a text stands for."""
    line, column, end_line, end_column, mark, function, file = text.split(":", 6)
    return ProbedSite(file, int(line), int(column), int(end_line), int(end_column), function, mark == UNORDERED)
