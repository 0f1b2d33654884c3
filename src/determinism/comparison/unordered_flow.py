"""Follows the differences of records that were paired by what they did."""

from __future__ import annotations

import numpy as np

from determinism.comparison.by_content import ContentGroup
from determinism.comparison.flow import Flow
from determinism.comparison.origins import Entry
from determinism.comparison.roots import Root
from determinism.comparison.vanished import read_on
from determinism.trace.joined import JoinedStreams
from determinism.types import Role

_LOOKS = (Role.ESCAPE, Role.CHECKPOINT)


class UnorderedFlow(Flow):
    """Follows every difference to its end, because any of them may be what another process received."""

    def __init__(self, first: JoinedStreams, second: JoinedStreams, group: ContentGroup, *, has_sinks: bool) -> None:
        super().__init__(first, second, group.second_keys.key)
        self._first = first
        self._group = group
        self._has_sinks = has_sinks
        self.reached: set[int] = set()
        """Indices of the roots that something read that counts."""
        self.used: set[int] = set()
        """Those of them that something did more with than look at or save the value."""
        self._is_look = False

    @property
    def roots(self) -> list[Root]:
        """All roots, in order."""
        return list(self._open.values())

    def follow(self) -> None:
        """Follow the differences of all records, also where they vanish."""
        self.add(self._group)
        if self._has_sinks:
            self.reached |= read_on(self._first, self._vanished())

    def roots_of(self, key: int, output: int) -> list[Root]:
        """The roots that an output descends from, in order."""
        return [self._open[index] for index in self._taints.roots_of(key, output)]

    def made_of(self, root: Root) -> set[bytes]:
        """Digests of all values of the first run that descend from a root."""
        outputs = self._group.first.children["outputs"]
        rows = dict(zip(self._group.keys.tolist(), self._group.pairing.first.tolist(), strict=True))
        found = set()
        for (key, output), taints in self._taints.items():
            if rows.get(key, -1) >= 0 and any(taint.root == root.index for taint in taints):
                found.add(outputs.columns["digest"][int(outputs.starts[rows[key]]) + output].tobytes())
        return found

    def _vanished(self) -> dict[int, set[int]]:
        """Records of the first run that received a difference and gave equal outputs; with the roots."""
        group = self._group
        paired = (group.pairing.first >= 0) & (group.pairing.second >= 0)
        made = np.diff(group.first.children["outputs"].starts)
        found = {}
        for at in np.flatnonzero(paired & ~group.flags.outputs).tolist():
            key, outputs = int(group.keys[at]), int(made[group.pairing.first[at]])
            roots = {root for output in range(outputs) for root in self._taints.roots_of(key, output)}
            if roots - self.reached:
                found[key] = roots
        return found

    def _reach_sinks(self, some: Entry, is_extra: bool, roots: set[int]) -> None:
        if self._has_sinks:
            self._is_look = some.role in _LOOKS
            super()._reach_sinks(some, is_extra, roots)

    def _settle(self, root: Root) -> None:
        self.reached.add(root.index)
        if not self._is_look:
            self.used.add(root.index)

    def _has_generator(self, group: object, row: int) -> bool:
        # Another stream has a generator of its own: an extra draw in one explains nothing in the others.
        return False
