"""What became of one setting."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Effect(StrEnum):
    """What became of a setting."""

    NOW = "took effect now"
    ALREADY = "was so already"
    FRESH = "needs a fresh process"
    WAITING = "waits for the import"
    ABSENT = "does not exist in this version"
    UNNEEDED = "not needed here"
    KEPT = "left as it is"
    FAILED = "could not be applied"
    MISSING = "missing"
    """Only where nothing was to be changed: it is not as it should be."""

    @property
    def is_open(self) -> bool:
        """Whether something is left to be done."""
        return self in (Effect.FRESH, Effect.FAILED, Effect.MISSING)


@dataclass(frozen=True)
class Setting:
    """One setting: what it was, what it is, and what that means."""

    name: str
    group: str
    """The framework that it belongs to; "python" or "libraries" for none."""
    before: Any
    after: Any
    """What it is now. If it needs a fresh process, what processes started from now on will have."""
    effect: Effect
    why: str
    source: str
    detail: str = ""
    """What was found, where `effect` alone does not tell."""
    line: str = ""
    """What to write to make it by hand."""
