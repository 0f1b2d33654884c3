"""The causes that can be named, with what removes them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("data") / "causes.toml"


@dataclass(frozen=True)
class CauseEntry:
    """What is known of one cause."""

    identifier: str
    title: str
    why: str
    remedy: str
    code: str | None = None
    """What to write at the start of the program; None where a line of its own has to change."""
    env: tuple[tuple[str, str], ...] | None = None
    """Environment variables that remove it."""


@cache
def causes() -> dict[str, CauseEntry]:
    """Every cause by its identifier."""
    with _FILE.open("rb") as file:
        entries = tomllib.load(file)
    return {
        identifier: CauseEntry(
            identifier,
            entry["title"],
            entry["why"],
            entry["remedy"],
            entry.get("code"),
            tuple((name, value) for name, value in entry["env"]) if "env" in entry else None,
        )
        for identifier, entry in entries.items()
    }
