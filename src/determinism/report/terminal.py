"""The report on the terminal: the verdict first, then the story, in at most 40 lines."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from determinism.comparison.result import Comparison
from determinism.report.batch import batch_sections
from determinism.report.causes import cause_entries
from determinism.report.entry import Entry, Tone, Weight
from determinism.report.layout import laid_out
from determinism.report.leftovers import leftover_entries
from determinism.report.missing import missing_entries
from determinism.report.notes import note_entries
from determinism.report.stack import stack_entries
from determinism.report.story import consequence_entries, origin_entries
from determinism.report.told import first_sentence
from determinism.report.values import growth_entries, parting_entries
from determinism.report.wording import counted
from determinism.types import Verdict

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
    sections = [
        list(_verdict_entries(comparison)),
        list(stack_entries(comparison)),
        list(leftover_entries(comparison)) if comparison.verdict is Verdict.DIFFERENT else [],
        list(missing_entries(comparison)),
        *_story(comparison),
        list(note_entries(comparison)),
    ]
    lines = laid_out(sections, console)
    console.print(Text("\n").join(lines), soft_wrap=True, highlight=False)


def _story(comparison: Comparison) -> list[list[Entry]]:
    if comparison.batch is not None:
        return batch_sections(comparison, comparison.batch)
    first = comparison.first_divergence
    return [
        [] if first is None else [*origin_entries(comparison, first), *parting_entries(comparison)],
        list(cause_entries(comparison)),
        [*consequence_entries(comparison), *growth_entries(comparison)],
    ]


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
