"""What replacing the ops of one framework came to. Imports no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


def _nothing() -> None:
    """There is nothing to put back."""


@dataclass(frozen=True)
class ReplacedOps:
    """The answer of a framework's `apply()`.

    Attributes:
        ops: What was replaced, in the words of the user.
        absent: What there is a replacement for, and what the installed version lacks.
        reason: Why nothing was replaced; None if something was, or was before.
        restore: Puts the stock ops back.
    """

    ops: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    reason: str | None = None
    restore: Callable[[], None] = _nothing
