"""One entry of the terminal report, before it is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Weight(IntEnum):
    """How much an entry matters; where the report gets too long, the highest numbers go first."""

    CORE = 0
    MAIN = 1
    CONSEQUENCE = 2
    NOTE = 3
    ITEM = 4
    EXTRA = 5


class Tone(StrEnum):
    """How an entry looks; the values are rich styles."""

    PLAIN = ""
    CODE = "cyan"
    SAME = "bold green"
    DIFFERENT = "bold red"
    INCONCLUSIVE = "bold yellow"


@dataclass(frozen=True)
class Entry:
    """A labelled paragraph. The text is as foreign as its sources are; the layout makes it safe to print."""

    text: str
    label: str = ""
    """Stands in the left column; empty for an entry that goes on with the one above."""
    weight: Weight = Weight.MAIN
    tone: Tone = Tone.PLAIN
    lines: int = 3
    """How many lines it may take; the rest is cut."""
    full_width: bool = False
    """Starts at the left edge instead of in the right column."""
    indent: int = 0
