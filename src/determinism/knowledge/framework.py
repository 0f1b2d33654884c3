"""Frameworks and libraries: their names, which releases were looked at, and what deterministic mode is in each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from determinism.errors import UsageError
from determinism.knowledge.files import DATA, read_toml, source_of
from determinism.knowledge.status import Source
from determinism.knowledge.versions import VersionRange, release

FOLDER = DATA / "frameworks"
_SPELLINGS = {"pytorch": "torch", "tf": "tensorflow", "ngc": "ngc-tensorflow", "keras": "tensorflow"}


@dataclass(frozen=True, slots=True)
class Mode:
    """How deterministic mode is turned on in a range of releases.

    Attributes:
        versions: The releases.
        how: What to call or set.
        note: What else there is to know; None if nothing.
        sources: What that rests on.
    """

    versions: VersionRange
    how: str
    note: str | None
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Base:
    """What a range of containers is built on.

    Attributes:
        versions: The containers.
        version: Their release of TensorFlow.
        version_tf1: That of the variant with the API of version 1; None if there is no such variant.
    """

    versions: VersionRange
    version: str
    version_tf1: str | None


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework or library.

    Attributes:
        identifier: The word that `--framework` takes.
        title: Its name in sentences.
        distributions: Names under which it may be installed.
        first: The oldest release that was looked at; None if releases are not told apart.
        last: The newest release that was looked at.
        modes: What deterministic mode is.
        bases: For containers, which releases of TensorFlow they are built on.
    """

    identifier: str
    title: str
    distributions: tuple[str, ...]
    first: str | None
    last: str | None
    modes: tuple[Mode, ...]
    bases: tuple[Base, ...]

    def mode(self, version: str | None) -> Mode | None:
        """What deterministic mode is in a release; in the newest one if none is named."""
        held = [
            mode
            for mode in self.modes
            if (mode.versions.until is None if version is None else version in mode.versions)
        ]
        return held[0] if held else None

    def base(self, version: str) -> str | None:
        """The release of TensorFlow within a container, such as 2.1 within `20.03` and 1.15 within `20.03-tf1`."""
        for base in self.bases:
            if version in base.versions:
                return base.version_tf1 if version.endswith("tf1") else base.version
        return None

    def knows(self, version: str) -> bool:
        """Whether a release lies between the oldest and the newest that were looked at."""
        numbers = release(version)
        if self.first is not None and numbers < release(self.first):
            return False
        return self.last is None or numbers[: len(release(self.last))] <= release(self.last)


def framework_names() -> list[str]:
    """The words that `--framework` takes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def framework_named(name: str) -> Framework:
    """A framework by its word.

    Raises:
        UsageError: Nothing is known about it.
    """
    word = name.strip().lower()
    word = _SPELLINGS.get(word, word)
    if word not in framework_names():
        raise UsageError(
            "framework-unknown",
            f"Nothing is known about a framework called {name!r}. There are: {', '.join(framework_names())}.",
        )
    return _read(word)


@cache
def _read(word: str) -> Framework:
    document = read_toml(FOLDER / f"{word}.toml")
    return Framework(
        identifier=document["id"],
        title=document["title"],
        distributions=tuple(document["distributions"]),
        first=document.get("first"),
        last=document.get("last"),
        modes=tuple(_mode(entry) for entry in document.get("mode", ())),
        bases=tuple(
            Base(VersionRange(entry.get("since"), entry.get("until")), entry["version"], entry.get("version_tf1"))
            for entry in document.get("base", ())
        ),
    )


def _mode(entry: dict[str, Any]) -> Mode:
    sources = tuple(source_of(text) for text in entry["sources"])
    return Mode(VersionRange(entry.get("since"), entry.get("until")), entry["how"], entry.get("note"), sources)
