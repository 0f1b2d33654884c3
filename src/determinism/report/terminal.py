"""The report on the terminal: the verdict first, then the story, in at most 40 lines."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from determinism.comparison.result import Comparison
from determinism.errors import legible
from determinism.report.entries import Entry, Tone, Weight, counted
from determinism.report.notes import note_entries
from determinism.report.story import first_sentence, sections
from determinism.types import Verdict

# Entries laid out in two columns, within a number of lines.

MOST_LINES = 40
MARGIN = 2
LABEL_WIDTH = 14
NARROWEST = 20
WIDEST = 120

_PLACE = re.compile(r"\.\w+:\d")
"""A file and a line; many terminals open it where it stands in one piece, also if they fold it themselves."""

_Block = tuple[Entry, list[Text]]


def laid_out(sections: list[list[Entry]], console: Console) -> list[Text]:
    """Lay out sections with an empty line between them.

    Where they are longer than the report may be, the entries that matter least are left out, and a last line says
    how many lines that were.

    Args:
        sections: Groups of entries, in the order of reading.
        console: Gives width and encoding.
    """
    blocks = [[(entry, _entry_lines(entry, console)) for entry in section] for section in sections if section]
    left_out = 0
    while _height(blocks) + bool(left_out) > MOST_LINES:
        left_out += _remove_least(blocks)
    lines: list[Text] = []
    for section in blocks:
        lines += [Text()] if lines else []
        lines += [line for _, entry_lines in section for line in entry_lines]
    if left_out:
        lines.append(Text(f"{' ' * MARGIN}{left_out} more lines were left out; --json FILE has the full lists."))
    return lines


def _height(blocks: list[list[_Block]]) -> int:
    return sum(len(lines) for section in blocks for _, lines in section) + len(blocks) - 1


def _remove_least(blocks: list[list[_Block]]) -> int:
    """Remove the last of the entries of the highest weight; returns how many lines it had."""
    last = max(
        ((section, position) for section, entries in enumerate(blocks) for position in range(len(entries))),
        key=lambda place: (blocks[place[0]][place[1]][0].weight, place),
    )
    _, lines = blocks[last[0]].pop(last[1])
    if not blocks[last[0]]:
        del blocks[last[0]]
    return len(lines)


def _entry_lines(entry: Entry, console: Console) -> list[Text]:
    margin = 0 if entry.full_width else MARGIN + LABEL_WIDTH
    label = "" if entry.full_width else f"{'':{MARGIN}}{entry.label:{LABEL_WIDTH}}"
    indent = " " * entry.indent
    width = max(min(console.width, WIDEST) - margin - entry.indent, NARROWEST)
    lines = _wrapped(entry, width, console)
    laid = [
        Text.assemble((" " * margin if number else label, "dim"), indent, line) for number, line in enumerate(lines)
    ]
    for line in laid:
        line.rstrip()
    return laid


def _wrapped(entry: Entry, width: int, console: Console) -> list[Text]:
    # Cut before wrapping too: a string from a program may be of any length.
    text = legible(entry.text[: width * (entry.lines + 1)], console.encoding)
    wrapped = [Text(line, style=entry.tone.value) for line in _lines_of_words(text, width, console)]
    if len(wrapped) <= entry.lines:
        return wrapped
    kept = wrapped[: entry.lines]
    last = kept[-1]
    last.truncate(width - 3)
    last.rstrip()
    last.append("...")
    return kept


def _lines_of_words(text: str, width: int, console: Console) -> list[str]:
    """Fold a text between its words; of words that are wider than a line, only places stay whole."""
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
    """A console without highlights; that nobody reads it is no reason to end with the status of a difference."""

    def __init__(self) -> None:
        super().__init__(highlight=False, soft_wrap=False)

    def on_broken_pipe(self) -> None:
        """Rich would end the program with exit status 1.

        Raises:
            BrokenPipeError: The one that is being handled.
        """
        raise


_TONES = {
    Verdict.SAME: Tone.SAME,
    Verdict.DIFFERENT: Tone.DIFFERENT,
    Verdict.INCONCLUSIVE: Tone.INCONCLUSIVE,
}


def render(comparison: Comparison, console: Console) -> None:
    """Print the report of a comparison.

    Args:
        comparison: What was found.
        console: Where to print; its width and encoding are kept to.
    """
    paragraphs = [
        list(_verdict_entries(comparison)),
        *sections(comparison),
        list(note_entries(comparison)),
    ]
    lines = laid_out(paragraphs, console)
    console.print(Text("\n").join(lines), soft_wrap=True, highlight=False)


def _verdict_entries(comparison: Comparison) -> list[Entry]:
    entries = [
        Entry(first_sentence(comparison), weight=Weight.CORE, tone=_TONES[comparison.verdict], lines=5, full_width=True)
    ]
    spots = len(comparison.recorded.blind_spots)
    if comparison.verdict is Verdict.SAME and spots:
        text = f"The verdict covers only what was recorded; there {'is' if spots == 1 else 'are'} "
        text += f"{counted(spots, 'blind spot')}."
        entries.append(Entry(text, weight=Weight.CORE, full_width=True))
    return entries
