"""Issues, pull requests and commits that made frameworks more deterministic, or showed that they were not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from determinism.knowledge.files import DATA, read_toml

FOLDER = DATA / "history"


@dataclass(frozen=True, slots=True)
class Event:
    """An issue, a pull request or a commit.

    Attributes:
        reference: `owner/name#number`, or `owner/name@hash` for a commit.
        kind: `issue`, `pull request` or `commit`.
        title: Its title.
        state: `open`, `closed` or `merged`, when it was looked at.
        as_of: When that was.
        opened: When it was opened; None if that is not told.
        merged: When it was merged; None if it was not, or that is not told.
        version: The first release that has it; None if that is not told.
        note: What else there is to know; None if nothing.
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
        """Where to read it."""
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
        for document in map(read_toml, sorted(FOLDER.glob("*.toml")))
        for entry in document["event"]
    )
