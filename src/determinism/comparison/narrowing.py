"""How a divergence of long runs was narrowed to a few steps: what ledgers and windows showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Window(NamedTuple):
    """Steps whose ops were recorded, in some runs."""

    first: int
    last: int
    runs: int
    differs: bool
    """Whether these runs differed."""
    parted_at: int | None
    """The step at which their ledgers part; None if they do not."""


@dataclass(frozen=True)
class Narrowing:
    """How a divergence of long runs was narrowed to a few steps."""

    process: str
    step: int
    """The first one at which the ledgers of two whole runs part."""
    groups: Sequence[str]
    """What parts there, such as `parameters`; empty if one run did not get that far."""
    steps: tuple[int, int]
    """How many steps each of these runs made."""
    losses: tuple[float | None, float | None]
    """Of that step."""
    windows: Sequence[Window]
    checkpoint: int
    """After how many steps the runs of the windows were resumed; 0 if they began from scratch."""
    seconds: float
    """What all of it took."""
    run_seconds: float
    """What one whole run took."""
    repeats_itself: bool = False
    """Whether all runs that were made now are equal, so that only the stored one differs from them."""

    @property
    def is_pinned(self) -> bool:
        """Whether the difference came again in a window, so that its ops are known."""
        return any(window.differs and window.first <= (window.parted_at or 0) <= window.last for window in self.windows)
