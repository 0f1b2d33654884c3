"""Renders the terminal report of a comparison as text."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from determinism.comparison.result import Comparison
from determinism.report.document import document
from determinism.report.terminal import render


def lines_of(comparison: Comparison, width: int = 200, *, verbose: bool = False, **options: Any) -> list[str]:
    """The lines of the report."""
    file = io.StringIO()
    render(document(comparison), Console(file=file, width=width, **options), verbose=verbose)
    text = file.getvalue()
    assert text.endswith("\n")
    return text[:-1].split("\n")


def text_of(comparison: Comparison) -> str:
    """The report with every detail, without its layout."""
    return " ".join(" ".join(lines_of(comparison, verbose=True)).split())
