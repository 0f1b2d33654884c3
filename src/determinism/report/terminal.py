"""The report on the terminal: verdict, cause, fix, and where the difference shows; details on request."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from determinism.comparison.result import Comparison
from determinism.errors import legible
from determinism.report.document import document, json_text, write_report
from determinism.report.entries import Section
from determinism.report.html import page, summary_fragment
from determinism.types import Verdict

# Entries laid out in two columns.

MARGIN = 2
LABEL_WIDTH = 18
CODE_MARGIN = 6
"""Margin of text to copy, such as a diff."""
NARROWEST = 20
WIDEST = 120
MOST_LINES = 6
"""The most lines of one entry; the rest is cut."""
_LONGEST_ADVICE = 1200
"""How many characters of an entry that says what to do are shown, if that is more: half of it would be of no use."""
_LONGEST_CODE = 400
_INDENT = 4
"""Indentation of code below a sentence."""
_GAP = "  "
"""Between a place that is wider than its column and the code there."""

_PLACE = re.compile(r"\.\w+:\d")
"""A file and a line; many terminals can open it if it is unbroken, even if they wrap it themselves."""

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")

_CODE = "cyan"
_REMOVED, _ADDED = "red", "green"


def layout_story(story: Sequence[dict[str, Any]], console: Console) -> Iterator[Text]:
    """Lay out the entries of a story, with an empty line between sections."""
    last = None
    for _, entries in groupby(story, key=lambda entry: entry["section"]):
        # A diff may itself end with an empty line.
        if last is not None and last.plain:
            yield Text()
        for entry in entries:
            for last in _entry_lines(entry, console):
                yield last


def _entry_lines(entry: dict[str, Any], console: Console) -> Iterator[Text]:
    if entry["is_code"] and not entry["label"] and entry["section"] in (Section.FIX, Section.SEARCH):
        # A wrapped line could not be copied.
        line = _cut(legible(entry["text"][:_LONGEST_CODE], console.encoding), _LONGEST_CODE)
        yield Text(f"{' ' * CODE_MARGIN}{line}".rstrip(), style=_style_of(line))
        return
    label = legible(entry["label"], console.encoding)
    if cell_len(label) >= LABEL_WIDTH:
        width = min(console.width, WIDEST) - MARGIN
        code = legible(entry["text"], console.encoding) if entry["is_code"] else ""
        if code and "\n" not in code and cell_len(label) + len(_GAP) + cell_len(code) <= width:
            yield Text.assemble((f"{' ' * MARGIN}{label}{_GAP}", "dim"), (code, _CODE))
            return
        label = label if _PLACE.search(label) else _cut(label, width)
        yield Text(f"{' ' * MARGIN}{label}", style="dim")
        label = ""
    margin = MARGIN + LABEL_WIDTH
    if entry["is_code"] and not label:
        margin = CODE_MARGIN if entry["label"] else margin + _INDENT
    width = max(min(console.width, WIDEST) - margin, NARROWEST)
    is_advice = not entry["is_code"] and entry["section"] in (Section.CAUSE, Section.FIX)
    most = max(MOST_LINES, -(-_LONGEST_ADVICE // width)) if is_advice else MOST_LINES
    lines = _wrapped(entry["text"], width, console, most)
    for number, line in enumerate(lines):
        first = f"{'':{MARGIN}}{label}{' ' * (margin - MARGIN - cell_len(label))}"
        laid = Text.assemble((" " * margin if number else first, "dim"), (line, _CODE if entry["is_code"] else ""))
        laid.rstrip()
        yield laid


def _style_of(line: str) -> str:
    """Return the colour of a line of a diff, or of other code."""
    if line.startswith("+") and not line.startswith("+++"):
        return _ADDED
    return _REMOVED if line.startswith("-") and not line.startswith("---") else _CODE


def _wrapped(text: str, width: int, console: Console, most: int = MOST_LINES) -> list[str]:
    # Cut before wrapping, too: a string from a program may have any length.
    lines = _lines_of_words(legible(text[: width * (most + 1)], console.encoding), width, console)
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    while cell_len(last) > width - len("...") and " " in last:
        last = last.rpartition(" ")[0]
    return [*lines[: most - 1], _cut(f"{last}{' ' * width}", width)]


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    kept = Text(text)
    kept.truncate(width - 3)
    return f"{kept.plain.rstrip()}..."


def _lines_of_words(text: str, width: int, console: Console) -> list[str]:
    """Wrap a text between words; words wider than a line are broken, except places."""
    lines = [""]
    for word in text.split(" "):
        if cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}" if lines[-1] else word
            continue
        pieces = [word]
        if cell_len(word) > width and not _PLACE.search(word):
            pieces = [piece.plain for piece in Text(word).wrap(console, width)]
        lines += pieces
    return [line for line in lines if line] or [""]


# Where reports are printed.


class ReportConsole(Console):
    """A console without highlights; a broken pipe does not end the program with the exit status of a difference."""

    def __init__(self) -> None:
        super().__init__(highlight=False, soft_wrap=False)

    def on_broken_pipe(self) -> None:
        """Reraise the error, since Rich would end the program with exit status 1.

        Raises:
            BrokenPipeError: The one being handled.
        """
        raise


_TONES = {
    Verdict.SAME: "bold green",
    Verdict.DIFFERENT: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
}


class Rest(NamedTuple):
    """Where the rest of a report is."""

    file: str | None = None
    """The file with the full report, if one was written."""
    details: str | None = None
    """The command that shows the details without running anything again, if there is one."""
    patch: str | None = None
    """The command that applies the fixes, if they were written to a file."""


NOWHERE_ELSE = Rest()


def render(
    content: dict[str, Any],
    console: Console,
    *,
    verbose: bool = False,
    rest: Rest | None = NOWHERE_ELSE,
) -> None:
    """Print a report.

    Args:
        content: The JSON document.
        console: Where to print; its width and encoding are respected.
        verbose: Whether details are shown.
        rest: Where the rest of the report is, printed at the end; None to leave that out.
    """
    width = min(console.width, WIDEST)
    lines = [
        Text(line, style=_TONES[Verdict(content["verdict"])]) for line in _wrapped(content["headline"], width, console)
    ]
    story = list(content["story"])
    if not verbose:
        story = _short_diffs([entry for entry in story if not entry["is_detail"]])
    if rest is not None:
        at = next((number for number, entry in enumerate(story) if entry["is_detail"]), len(story))
        story[at:at] = _rest_rows(content, rest, verbose=verbose)
    if story:
        lines += [Text(), *layout_story(story, console)]
    console.print(Text("\n").join(lines), soft_wrap=True, highlight=False)


def render_rest(content: dict[str, Any], console: Console, rest: Rest) -> None:
    """Print only where the rest of a report is, if that was left out before."""
    rows = _rest_rows(content, rest, verbose=False)
    if rows:
        console.print(Text("\n").join(layout_story(rows, console)), soft_wrap=True, highlight=False)


def _short_diffs(story: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move the file name of a diff into its hunk headers, and leave out empty lines at its end."""
    entries: list[dict[str, Any]] = []
    name = ""
    for number, entry in enumerate(story):
        if entry["section"] != Section.FIX or not entry["is_code"]:
            entries, name = [*_without_empty_end(entries), entry], ""
            continue
        text, following = entry["text"], [one["text"] for one in story[number + 1 : number + 3]]
        if text.startswith("--- ") and len(following) == 2 and _HUNK.match(following[1]):
            name = text[4:] if following[0] == f"+++ {text[4:]}" else ""
            if name:
                continue
        elif name and text == f"+++ {name}":
            continue
        elif name and (hunk := _HUNK.match(text)):
            entry = {**entry, "text": f"@@ {name}:{hunk[1]} @@"}
        entries.append(entry)
    return _without_empty_end(entries)


def _without_empty_end(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = len(entries)
    while (
        last
        and entries[last - 1]["is_code"]
        and not entries[last - 1]["label"]
        and not entries[last - 1]["text"].strip()
    ):
        last -= 1
    return entries[:last]


_SAME_COMMAND = "the same command with -v"


def _rest_rows(content: dict[str, Any], rest: Rest, *, verbose: bool) -> list[dict[str, Any]]:
    has_more = (
        not verbose and content["verdict"] != Verdict.SAME and any(entry["is_detail"] for entry in content["story"])
    )
    section = next((entry["section"] for entry in reversed(content["story"]) if not entry["is_detail"]), Section.NOTES)
    rows = [
        ("apply the fix", rest.patch),
        ("report", rest.file),
        ("details", rest.details or _SAME_COMMAND if has_more else None),
    ]
    return [
        {"section": section, "label": label, "text": text, "is_code": False, "is_detail": False}
        for label, text in rows
        if text is not None
    ]


# Every form of a report, for the methods of `determinism.Comparison`.

_WIDTH = 100


def headline(comparison: Comparison) -> str:
    """Return the first line."""
    return str(document(comparison)["headline"])


def text(comparison: Comparison, *, verbose: bool) -> str:
    """Return the report as the terminal shows it, without colours.

    Args:
        comparison: What was found.
        verbose: Whether to include every detail.
    """
    file = io.StringIO()
    # In a notebook, rich would show the text there, and leave the file empty; with FORCE_COLOR it would write escapes.
    console = Console(file=file, width=_WIDTH, no_color=True, force_jupyter=False, force_terminal=False)
    render(document(comparison), console, verbose=verbose, rest=None)
    return file.getvalue()


def fragment(comparison: Comparison) -> str:
    """Return the top of the page as an HTML fragment for a notebook."""
    return summary_fragment(document(comparison))


def write_page(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the page.

    Raises:
        UsageError: It cannot be written.
    """
    write_report(Path(path), page(document(comparison)), "to_html")


def write_json(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the JSON document.

    Raises:
        UsageError: It cannot be written.
    """
    write_report(Path(path), json_text(document(comparison)), "to_json")
