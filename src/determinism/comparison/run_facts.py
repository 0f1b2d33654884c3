"""What is known of runs as a whole, besides their records: how they went, what they left on the disk and printed, how they were narrowed."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from determinism.redaction import redacted, redacted_text
from determinism.trace.schema import Frame


@dataclass(frozen=True)
class RunSummary:
    """How one run went."""

    command: Sequence[str]
    exit_status: int | None
    stopped_by: str | None
    """Signal name, `steps`, `fail-fast`, `interrupt`, `max-disk` …; None for a run that ended by itself."""
    seconds: float
    trace: str | None
    waited: float = 0.0
    """How many of the seconds it was ready to run and had no processor, as on a busy machine."""

    @property
    def idle_seconds(self) -> float:
        """About how long it takes on an idle machine: limits and budgets count these."""
        return max(0.0, self.seconds - self.waited)

    def __post_init__(self) -> None:
        """Hide secrets of the command line, also those that an older version stored."""
        object.__setattr__(self, "command", redacted(list(self.command)))


class FileChange(enum.StrEnum):
    """How a file came to change during a run."""

    CREATED = "created"
    """A process of the run was seen to create it: removing it restores what that run started from."""
    OVERWRITTEN = "overwritten"
    """A process of the run was seen to write it, and it existed before any run did so."""
    UNSEEN = "unseen"
    """No process of the run was seen to write it, so it may have been changed by somebody else."""


@dataclass(frozen=True)
class Leftover:
    """A file that changed during one run and that a later one read before it wrote to it: the runs did not start alike.

    Runs count from 1.
    """

    file: str
    changed_in: int
    read_in: int
    is_copied: bool
    """Whether a fresh copy of the working directory would have hidden it."""
    site: Frame | None = None
    """The line of the program that opened it to read."""
    # Danger: only what is CREATED may be suggested for removal; all else may be the user's own data.
    change: FileChange = FileChange.UNSEEN
    cache: str | None = None
    """Whose compile cache it lies in; None if in none."""
    is_folder: bool = False
    """Whether it was a folder at the end of the run that read it."""


@dataclass(frozen=True)
class PrintedDifference:
    """Two lines that runs printed, which are alike but for numbers, although no tensor differs.

    Lines that show times, memory or addresses do not count, nor does the order of lines.
    """

    runs: tuple[int, int]
    """Counted from 1."""
    first: str
    """The line that only the first of these runs printed."""
    second: str

    def __post_init__(self) -> None:
        """Hide secrets."""
        object.__setattr__(self, "first", redacted_text(self.first))
        object.__setattr__(self, "second", redacted_text(self.second))


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
