"""What is often said about determinism, and what is so."""

from __future__ import annotations

from dataclasses import dataclass

from determinism.knowledge.files import DATA, read_toml, source_of
from determinism.knowledge.status import Source

FILE = DATA / "myths.toml"


@dataclass(frozen=True, slots=True)
class Myth:
    """Something that is said and not so.

    Attributes:
        identifier: Short and stable.
        claim: What is said.
        fact: What is so.
        sources: What that rests on.
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
