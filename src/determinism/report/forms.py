"""Every form of a report, as the methods of `determinism.Comparison` give it."""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console

from determinism.comparison.result import Comparison
from determinism.report.document import document, json_text, write_report
from determinism.report.html import page, summary_fragment
from determinism.report.terminal import render

_WIDTH = 100


def headline(comparison: Comparison) -> str:
    """Write the first line."""
    return str(document(comparison)["headline"])


def text(comparison: Comparison, *, verbose: bool) -> str:
    """Write the report as the terminal shows it, without colours.

    Args:
        comparison: What was found.
        verbose: Whether every detail is part of it.
    """
    file = io.StringIO()
    render(document(comparison), Console(file=file, width=_WIDTH, no_color=True), verbose=verbose, hint=False)
    return file.getvalue()


def fragment(comparison: Comparison) -> str:
    """Write what the page begins with, as a piece of HTML for a notebook."""
    return summary_fragment(document(comparison))


def write_page(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the page.

    Args:
        comparison: What was found.
        path: The file; one that is there is replaced.

    Raises:
        UsageError: It cannot be written.
    """
    write_report(Path(path), page(document(comparison)), "to_html")


def write_json(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the JSON document.

    Args:
        comparison: What was found.
        path: The file; one that is there is replaced.

    Raises:
        UsageError: It cannot be written.
    """
    write_report(Path(path), json_text(document(comparison)), "to_json")
