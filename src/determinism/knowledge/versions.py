"""Releases and ranges of them. Pre-releases and local builds count as the release that they belong to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from determinism.errors import UsageError

_RELEASE = re.compile(r"\s*v?(?:\d+!)?(\d+(?:\.\d+)*)")


def release(version: str) -> tuple[int, ...]:
    """The release that a version belongs to, without trailing zeros: `2.13.0+cpu` and `2.13.0rc1` are both (2, 13).

    The package `packaging` would read the same numbers, but takes longer to load than the command that asks may take.

    Raises:
        UsageError: It is no version.
    """
    match = _RELEASE.match(version)
    if match is None:
        raise UsageError(
            "version-unreadable",
            f"{version!r} is no version, so nothing can be looked up for it. Give one such as 2.13 or 2.13.0.",
        )
    numbers = [int(number) for number in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The releases from one on until before another.

    Attributes:
        since: The first release; None for all earlier ones too.
        until: The first release for which it does not hold any more; None if there is none yet.
    """

    since: str | None
    until: str | None

    def __contains__(self, version: str) -> bool:
        numbers = release(version)
        begins = self.since is None or numbers >= release(self.since)
        return begins and (self.until is None or numbers < release(self.until))

    def overlaps(self, other: VersionRange) -> bool:
        """Whether some release is in both."""
        return _before(self.since, other.until) and _before(other.since, self.until)

    def __str__(self) -> str:
        parts = [f">={self.since}"] if self.since is not None else []
        parts += [f"<{self.until}"] if self.until is not None else []
        return ", ".join(parts) or "all"


def _before(since: str | None, until: str | None) -> bool:
    return since is None or until is None or release(since) < release(until)
