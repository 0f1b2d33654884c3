"""One use of a source at one place: it can be noted, and may be asked to have a fixed value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from determinism.probes.notes import Notes
from determinism.probes.request import ProbeRequest
from determinism.probes.site_text import parsed

_CLOCK = "clock"


@dataclass(frozen=True)
class Use:
    """A source, used at a place."""

    probing: Probing
    site: str
    source: str

    @property
    def is_fixed(self) -> bool:
        """Whether it is to have a fixed value."""
        return self.probing.is_fixed(self.site, self.source)

    @property
    def is_unordered(self) -> bool:
        """Whether the result goes straight to what does not mind the order."""
        return parsed(self.site).is_unordered

    def of(self, source: str) -> Use:
        """The use of another source at the same place."""
        return replace(self, source=source)

    def note(self, text: Callable[[], str | None], **details: Any) -> None:
        """Note it; see `Notes.take`."""
        if self.probing.notes is not None:
            self.probing.notes.take(self.site, self.source, text, **details)


class Probing:
    """What this process was asked for."""

    def __init__(self, request: ProbeRequest) -> None:
        self.notes = None if request.notes is None else Notes(request.notes)
        self._everywhere = frozenset(request.fixed_sources)
        self._at_lines = frozenset((one.file, one.line, one.source) for one in request.fixed)
        self._clock_files = frozenset(one.file for one in request.fixed if one.source == _CLOCK)
        self._known: dict[tuple[str, str], bool] = {}

    def is_fixed(self, site: str, source: str) -> bool:
        """Whether a source is to have a fixed value at a site."""
        key = (site, source)
        known = self._known.get(key)
        if known is None:
            place = parsed(site)
            at_line = (place.original_file, place.line, source) in self._at_lines
            # A moment of a fixed clock must never be compared with one of the real clock.
            is_beside = source == _CLOCK and place.original_file in self._clock_files
            known = at_line or is_beside or source in self._everywhere
            self._known[key] = known
        return known
