"""Environment variables, functions, options and flags that have to do with determinism."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from determinism.knowledge.files import DATA, read_toml, source_of
from determinism.knowledge.status import Source
from determinism.knowledge.versions import VersionRange

FOLDER = DATA / "settings"


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that can be set.

    Attributes:
        name: As it is written in code or in the environment.
        kind: `environment variable`, `function`, `option` or `flag`.
        framework: Whose it is.
        versions: In which releases it is there.
        values: Which values it takes; None if that is not told.
        effect: What it does.
        note: What else there is to know; None if nothing.
        sources: What that rests on.
    """

    name: str
    kind: str
    framework: str
    versions: VersionRange
    values: str | None
    effect: str
    note: str | None
    sources: tuple[Source, ...]


@cache
def settings() -> tuple[Setting, ...]:
    """All settings, in the order of the data."""
    return tuple(
        Setting(
            name=entry["name"],
            kind=entry["kind"],
            framework=entry["framework"],
            versions=VersionRange(entry.get("since"), entry.get("until")),
            values=entry.get("values"),
            effect=entry["effect"],
            note=entry.get("note"),
            sources=tuple(source_of(text) for text in entry["sources"]),
        )
        for path in sorted(FOLDER.glob("*.toml"))
        for entry in read_toml(path)["setting"]
    )
