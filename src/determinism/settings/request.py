"""What is asked of the settings."""

from __future__ import annotations

from dataclasses import dataclass

from determinism.errors import UsageError

PRECISIONS = ("highest", "high", "medium")


@dataclass(frozen=True)
class Request:
    """Which settings are to be made, and how."""

    warn_only: bool = False
    """Ops without a deterministic implementation warn instead of raising."""
    threads: int | None = None
    """How many threads compute on the CPU; None leaves it."""
    precision: str | None = None
    """How exact float32 matrix products are; None leaves it."""
    change: bool = True
    """False only looks."""

    def __post_init__(self) -> None:
        if self.threads is not None and (
            not isinstance(self.threads, int) or isinstance(self.threads, bool) or self.threads < 1
        ):
            raise UsageError(
                "threads-unusable",
                f"threads={self.threads!r} is no number of threads, so nothing was set. Give 1 or more.",
            )
        if self.precision is not None and self.precision not in PRECISIONS:
            raise UsageError(
                "precision-unknown",
                f"precision={self.precision!r} is none of {', '.join(PRECISIONS)}, so nothing was set. Give one of these.",
            )
