"""The story of a comparison as data: the sentences that the terminal report and the documents share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from determinism.comparison.result import Comparison
from determinism.report.batch import batch_headline, batch_sections
from determinism.report.entry import Entry, Tone
from determinism.report.leftovers import leftover_entries
from determinism.report.missing import missing_entries
from determinism.report.stack import stack_entries
from determinism.report.story import consequence_entries, origin_entries
from determinism.report.values import growth_entries, parting_entries
from determinism.report.wording import headline
from determinism.types import Verdict


def story(comparison: Comparison) -> list[dict[str, Any]]:
    """What differs first, where, and what became of it, in the order of reading.

    Each entry has a `label`, empty where it goes on with the one above, a `text`, and `is_code`, whether the text is a line of
    the program.
    """
    return [
        {"label": entry.label, "text": entry.text, "is_code": entry.tone is Tone.CODE} for entry in _entries(comparison)
    ]


def first_sentence(comparison: Comparison) -> str:
    """The verdict, and what it rests on."""
    if comparison.batch is None or comparison.verdict is Verdict.INCONCLUSIVE:
        return headline(comparison)
    return batch_headline(comparison, comparison.batch)


def _entries(comparison: Comparison) -> Iterator[Entry]:
    if comparison.batch is not None:
        yield from (entry for section in batch_sections(comparison, comparison.batch) for entry in section)
        return
    if comparison.verdict is Verdict.DIFFERENT:
        yield from stack_entries(comparison)
        yield from leftover_entries(comparison)
    yield from missing_entries(comparison)
    if comparison.first_divergence is not None:
        yield from origin_entries(comparison, comparison.first_divergence)
        yield from parting_entries(comparison)
    yield from consequence_entries(comparison)
    yield from growth_entries(comparison)
