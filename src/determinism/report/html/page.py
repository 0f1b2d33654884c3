"""Makes the HTML page from a JSON document, which is all that it needs."""

from __future__ import annotations

import posixpath
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from determinism import __version__
from determinism.report.html.flow_picture import flow_picture
from determinism.report.html.loss_chart import loss_chart
from determinism.report.html.spread_chart import spread_chart
from determinism.report.html.story_rows import story_rows
from determinism.report.legible import legible
from determinism.report.summary import summary

_FOLDER = Path(__file__).with_name("templates")
_LONGEST_TEXT = 5000
"""Nobody reads a name as long as a book, and a page that holds it is no use to anyone."""


def page(document: dict[str, Any]) -> str:
    """Write the page.

    Args:
        document: A document that keeps to `report.schema.json`, from `determinism.report.document` or
            `determinism.report.stored`.
    """
    first = document["first_divergence"]
    template = _environment().get_template("page.html")
    return template.render(
        report=document,
        headline=summary(document),
        first=first,
        story=story_rows(document),
        spread=spread_chart(document),
        losses=loss_chart(document),
        flow=flow_picture(document["dataflow"]),
        sources={(source["file"], source["line"]): source for source in document["sources"]},
        run_names=[f"run {number}" for number in document["compared_runs"] or (1, 2)],
        version=__version__,
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals["style"] = Markup((_FOLDER / "style.css").read_text(encoding="utf-8"))
    environment.filters["counted"] = _counted
    environment.filters["number"] = _number
    environment.filters["split_path"] = posixpath.split
    environment.filters["code_lines"] = _code_lines
    environment.filters["without_verdict"] = _without_verdict
    return environment


def _shown(value: Any) -> Any:
    """What is not ours to trust prints: control characters and marks that reverse writing become visible."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if len(value) <= _LONGEST_TEXT:
        return legible(value)
    return f"{legible(value[:_LONGEST_TEXT])}… ({len(value) - _LONGEST_TEXT:,} more characters)"


def _code_lines(text: str) -> list[str]:
    """The lines of a piece of code, with tabs as wide as they look."""
    return [line.expandtabs(4) for line in text.split("\n")]


def _without_verdict(headline: str) -> str:
    """The headline without its first word, which stands beside it."""
    rest = headline.partition(": ")[2] or headline
    return rest[:1].upper() + rest[1:]


def _counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _number(value: float | int | None, digits: int = 3) -> str:
    """A number as people read it; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"
