"""Reads what the processes of one run noted of the sources that they used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from determinism.probes.notes import NOTES_SUFFIX

MAIN_THREAD = "MainThread"
_MOST_LINES = 300_000
_MOST_BYTES = 1_000_000
"""Of one line; a longer one is none of ours."""


@dataclass(frozen=True)
class Unprobed:
    """A module of the user that ran as it is, so that nothing was noted in it."""

    file: str
    module: str
    reason: str


@dataclass
class Series:
    """The uses of a source at one place by one thread, in order; by all threads but the main one, together."""

    notes: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0


Site = tuple[str, str, int, int]
"""A source, and the file, the line and the column where it was used."""
Place = tuple[str, str, int, int, str]
"""The same, with the thread: the main one, or none for all others."""


@dataclass
class ProcessNotes:
    """The notes of one process."""

    series: dict[Place, Series] = field(default_factory=dict)
    unprobed: list[Unprobed] = field(default_factory=list)


def unprobed_modules(folder: Path) -> list[Unprobed]:
    """The user's modules in which nothing could be noted.

    Args:
        folder: With the notes of a run.
    """
    return list(dict.fromkeys(one for key in sorted(process_keys(folder)) for one in read_notes(folder, key).unprobed))


def process_keys(folder: Path) -> set[str]:
    """The keys of the processes that took notes in a folder."""
    return {path.name[: -len(NOTES_SUFFIX)] for path in folder.glob(f"*{NOTES_SUFFIX}")}


def read_notes(folder: Path, key: str) -> ProcessNotes:
    """What a process noted, without what is broken off.

    Args:
        folder: With the notes of a run.
        key: One of `process_keys`.
    """
    result = ProcessNotes()
    for document in _documents(folder / f"{key}{NOTES_SUFFIX}"):
        if "unprobed" in document:
            result.unprobed.append(Unprobed(document["unprobed"], document["module"], document["reason"]))
        elif "source" in document:
            thread = MAIN_THREAD if document["thread"] == MAIN_THREAD else ""
            place = (document["source"], document["file"], document["line"], document["column"], thread)
            series = result.series.setdefault(place, Series())
            if "count" in document:
                series.count = max(series.count, document["count"])
            else:
                series.notes.append(document)
                series.count = max(series.count, document["occurrence"] + 1)
    return result


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that are whole; that of a killed process may end in the middle of one."""
    with path.open("rb") as file:
        for _ in range(_MOST_LINES):
            line = file.readline(_MOST_BYTES)
            if not line:
                return
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if isinstance(document, dict):
                yield document
