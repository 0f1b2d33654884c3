"""From a node of the autograd graph to the forward op that made it.

The counter of nodes is per thread. At dispatch it already stands one behind the node that the op belongs to. The first
record that sees the counter move owns the node: later records of the same value are parts of the same op.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from determinism.sites import NO_STACK

_MOST_LINKS = 200_000
_MOST_SKIPPED = 8
sequence_number = torch.autograd._get_sequence_nr


@dataclass(slots=True)
class Link:
    """The forward side of a node."""

    record: int
    """Number of the record; -1 for a view, which has none."""
    stack: int
    module: int


NO_MODULE = -1
NOWHERE = Link(-1, NO_STACK, NO_MODULE)


class ForwardLinks:
    """The links of the thread that is recorded. Two generations are kept, so that memory stays bounded over steps."""

    def __init__(self) -> None:
        self.last = -1
        """The counter when a link was last made."""
        self.newest: Link | None = None
        """The link made last."""
        self.wrote_view: Link | None = None
        """Set by a record that wrote into a view, until the next link."""
        self._new: dict[int, Link] = {}
        self._old: dict[int, Link] = {}

    def add(self, sequence: int, link: Link) -> None:
        """The counter moved to `sequence` during the op of this link.

        Numbers that were skipped belong to nodes that were made without an op at that moment: by this op before its
        first record, or, after a write into a view, by the write (`CopySlices` and the view made anew).
        """
        if self.last != sequence - 1:
            self._add_skipped(sequence, link)
        self.last = sequence
        self.newest = link
        self.wrote_view = None
        self._new.setdefault(sequence - 1, link)
        if len(self._new) >= _MOST_LINKS:
            self.age()

    def _add_skipped(self, sequence: int, link: Link) -> None:
        skipped = range(max(self.last, sequence - 1 - _MOST_SKIPPED), sequence - 1) if self.last >= 0 else ()
        for index, number in enumerate(skipped):
            after_write = self.wrote_view is not None and index < 2
            self._new.setdefault(number, self.wrote_view if after_write and self.wrote_view else link)

    def of(self, sequence: int) -> Link:
        """The link of a node."""
        return self._new.get(sequence) or self._old.get(sequence) or NOWHERE

    def age(self) -> None:
        """A step ended: forget what is older than the step before."""
        self._old, self._new = self._new, {}
