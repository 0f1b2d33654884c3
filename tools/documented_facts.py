"""Facts that only the documents use: issues and changes of frameworks, settings of libraries, myths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from determinism.knowledge.entries import DATA, Source, VersionRange, read_toml, source_of

HISTORY_FOLDER = DATA / "history"


@dataclass(frozen=True, slots=True)
class Event:
    """An issue, a pull request or a commit.

    Attributes:
        reference: `owner/name#number`, or `owner/name@hash` for a commit.
        kind: `issue`, `pull request` or `commit`.
        title: Its title.
        state: `open`, `closed` or `merged`, when it was examined.
        as_of: When it was examined.
        opened: When it was opened; None if unknown.
        merged: When it was merged; None if it was not, or if unknown.
        version: The first release that has it; None if unknown.
        note: Further information; None if there is none.
    """

    reference: str
    kind: str
    title: str
    state: str
    as_of: str
    opened: str | None
    merged: str | None
    version: str | None
    note: str | None

    @property
    def address(self) -> str:
        """Its web address."""
        repository, _, number = self.reference.replace("@", "#").partition("#")
        part = {"issue": "issues", "pull request": "pull", "commit": "commit"}[self.kind]
        return f"https://github.com/{repository}/{part}/{number}"


@cache
def history() -> tuple[Event, ...]:
    """All events, by file and in its order."""
    return tuple(
        Event(
            reference=entry["reference"],
            kind=entry["kind"],
            title=entry["title"],
            state=entry["state"],
            as_of=document["as_of"],
            opened=entry.get("opened"),
            merged=entry.get("merged"),
            version=entry.get("version"),
            note=entry.get("note"),
        )
        for document in map(read_toml, sorted(HISTORY_FOLDER.glob("*.toml")))
        for entry in document["event"]
    )


# What is often said about determinism, and what is true.

FILE = DATA / "myths.toml"


@dataclass(frozen=True, slots=True)
class Myth:
    """A common claim that is not true.

    Attributes:
        identifier: Short and stable.
        claim: What is said.
        fact: What is true.
        sources: The sources of the fact.
    """

    identifier: str
    claim: str
    fact: str
    sources: tuple[Source, ...]


def myths() -> tuple[Myth, ...]:
    """All myths, in the order of the data."""
    return tuple(
        Myth(entry["id"], entry["claim"], entry["fact"], tuple(source_of(text) for text in entry["sources"]))
        for entry in read_toml(FILE)["myth"]
    )


# Environment variables, functions, options and flags that affect determinism.

FOLDER = DATA / "settings"


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that can be set.

    Attributes:
        name: As it is written in code or in the environment.
        kind: `environment variable`, `function`, `option` or `flag`.
        framework: The framework that it belongs to.
        versions: The releases that have it.
        values: The values that it takes; None if unknown.
        effect: What it does.
        note: Further information; None if there is none.
        sources: The sources of these facts.
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
    """All settings whose effect is in the data, in its order."""
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
        if "effect" in entry
    )
