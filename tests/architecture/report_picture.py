"""Draw the report of a stored program as a terminal shows it, for the documents: `make docs`."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from determinism.report.document import read_document
from determinism.report.entries import answer, headline
from determinism.report.story import story_document
from determinism.report.terminal import render

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "tests" / "golden" / "stored" / "explained" / "hash_order" / "report.json"
_STATIC = ROOT / "docs" / "_static"
PICTURES = {_STATIC / "report.svg": 100, **{_STATIC / f"report-{width}.svg": width for width in (60, 80, 140)}}
"""The files, each with the number of columns of its terminal."""


def picture(width: int) -> str:
    """The report as SVG, with the colours of a terminal.

    Args:
        width: The number of columns of the terminal.
    """
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True, color_system="truecolor")
    content = read_document(REPORT)
    # It was stored by an earlier version, which worded it differently.
    content |= {"headline": headline(content), "story": story_document(answer(content))}
    render(content, console, rest=None)
    return console.export_svg(title="determinism check -- python task_losses.py", unique_id=f"report-{width}")


if __name__ == "__main__":
    for file, width in PICTURES.items():
        file.write_text(picture(width), encoding="utf-8")
