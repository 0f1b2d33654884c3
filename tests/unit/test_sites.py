"""Stacks of user frames: distinguished by the position of each frame, and as cheap below a deep recursion as a shallow one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from determinism.sites import SiteTable

MOST_FRAMES = 48


class Written:
    """A table of sites that keeps its output."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.stacks: list[list[int]] = []
        self.table = SiteTable(self._add_frame, self._add_stack)

    def _add_frame(self, text: str) -> int:
        self.frames.append(text)
        return len(self.frames) - 1

    def _add_stack(self, text: str) -> int:
        self.stacks.append(json.loads(text))
        return len(self.stacks) - 1

    def here(self) -> int:
        return self.table.stack(sys._getframe(1))


def below(depth: int, look: Callable[[], int]) -> int:
    return look() if not depth else below(depth - 1, look)


def test_lines_are_distinguished() -> None:
    written = Written()
    numbers = [below(2, written.here) for _ in range(3)]
    other = below(2, written.here)
    assert len(set(numbers)) == 1
    assert other != numbers[0]


def test_a_deep_recursion_is_examined_only_as_far_as_it_is_shown() -> None:
    written = Written()
    numbers = {depth: below(depth, written.here) for depth in (10, 100, 500, 800)}
    assert numbers[10] != numbers[100]
    assert numbers[100] == numbers[500] == numbers[800]
    assert all(len(stack) <= MOST_FRAMES for stack in written.stacks)
    # One entry for the shallow stack and one for the deep stacks, which are not distinguished.
    assert len(written.table._by_instruction) == 2
