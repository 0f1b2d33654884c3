"""The story as rows of a page: without what stands on the page in a form of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

_OF_PLACES = {"site": "site", "forward site": "forward_site"}
"""Rows that only name a place which is shown with its lines."""
_OF_MISSING = frozenset({"not saved", "saved at"})
"""Rows of what a checkpoint lacks, which has a section."""


class Row(NamedTuple):
    """What stands beside one label."""

    label: str
    texts: list[str]


def story_rows(document: dict[str, Any]) -> list[Row]:
    """The rows of the story of a document, in order."""
    rows: list[Row] = []
    for entry in document["story"]:
        if entry["label"] or not rows:
            rows.append(Row(entry["label"], []))
        if not entry["is_code"]:
            rows[-1].texts.append(entry["text"])
    return [row for row in rows if row.texts and not _is_elsewhere(row.label, document)]


def _is_elsewhere(label: str, document: dict[str, Any]) -> bool:
    first = document["first_divergence"]
    if label in _OF_PLACES:
        return first is not None and first[_OF_PLACES[label]] is not None
    return label in _OF_MISSING and bool(document["missing"])
