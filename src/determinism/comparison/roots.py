"""Where differences begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from determinism.comparison.group import Group
from determinism.comparison.origins import Entry


class Aspects(NamedTuple):
    """In what a pair of records differs."""

    outputs: bool
    edges: bool
    digests: bool
    arguments: bool
    generators: bool


@dataclass(frozen=True)
class Root:
    """A record that differs, and received no difference."""

    index: int
    """Counts roots in execution order."""
    group: Group = field(repr=False)
    position: int
    """Within the group."""
    first: Entry | None
    second: Entry | None
    aspects: Aspects
    reads_unwritten: bool
    allocation: int | None
    """Record of the first run that allocated the memory which is read unwritten."""
    came_in: bool
    """Whether an input that differs arrived from another process, through a collective or a receive."""

    @property
    def is_extra(self) -> bool:
        """Whether only one of the runs has the record."""
        return self.first is None or self.second is None
