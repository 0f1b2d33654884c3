"""Gives equal names of two processes equal numbers, so that columns of numbers can be compared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from determinism.trace.chunk import Array
from determinism.trace.names import Frame
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import Table

_SHARE_OF_COMMON_STACKS = 0.5
_PRECISIONS = ((True, True, True), (True, False, True), (True, False, False), (False, False, False))
"""Whether stacks match with their files, line numbers and source lines. Of an edited program, lines have moved."""


@dataclass(frozen=True)
class Numbers:
    """For both processes: the canonical number of each own number; the last entry stands for "absent"."""

    first: Array
    second: Array

    def __getitem__(self, side: int) -> Array:
        return (self.first, self.second)[side]

    @cached_property
    def num_common(self) -> int:
        """Own numbers below this one stand for the same in both processes."""
        named = min(len(self.first), len(self.second)) - 1
        apart = np.flatnonzero(self.first[:named] != self.second[:named])
        return int(apart[0]) if len(apart) else named

    def all_equal(self, first: Array, second: Array) -> bool:
        """Whether all cells of two columns of own numbers stand for the same, pair by pair."""
        if are_same_cells(first, second) and (not len(first) or int(first.max()) < self.num_common):
            return True
        return np.array_equal(self.first[first], self.second[second])


def are_same_cells(first: Array, second: Array) -> bool:
    """Whether two columns hold the same; costs nothing where both processes were given one column."""
    return first is second or np.array_equal(first, second)


class Canonical:
    """Canonical numbers of ops, modules, stacks, arguments and layouts of two processes."""

    def __init__(self, first: ProcessTrace, second: ProcessTrace) -> None:
        """Match the names of both.

        Stacks match by file, line, function and source line, with files below the working directory named relative to
        it. If most stacks differ, the runs ran different versions of a program: then line numbers, and after them
        source lines and files, are left out.
        """
        self.ops = _match(first.names.texts(Table.OP), second.names.texts(Table.OP))
        self.modules = _match(first.names.texts(Table.MODULE), second.names.texts(Table.MODULE))
        self.arguments = _match(first.names.texts(Table.ARGUMENTS), second.names.texts(Table.ARGUMENTS))
        self.layouts = _match(first.names.texts(Table.LAYOUT), second.names.texts(Table.LAYOUT))
        self.stacks = _match_stacks(first, second)


def _match_stacks(first: ProcessTrace, second: ProcessTrace) -> Numbers:
    files = [{place for _, place in _places(process)} for process in (first, second)]
    # Code in a temporary folder has another file name in every run.
    common_files = files[0] & files[1]
    for has_files, has_lines, has_code in _PRECISIONS:
        known = common_files if has_files else set()
        texts = [_stack_texts(process, files=known, lines=has_lines, code=has_code) for process in (first, second)]
        distinct = [set(part) for part in texts]
        common = len(distinct[0] & distinct[1])
        if common >= _SHARE_OF_COMMON_STACKS * min(len(part) for part in distinct):
            break
    return _match(*texts)


def _match(first: Iterable[str], second: Iterable[str]) -> Numbers:
    numbers: dict[str, int] = {}

    def of(texts: Iterable[str]) -> Array:
        return np.array([*(numbers.setdefault(text, len(numbers)) for text in texts), -1], dtype=np.int32)

    return Numbers(of(first), of(second))


def _places(process: ProcessTrace) -> Iterator[tuple[Frame, str]]:
    """Each frame with its file, relative to the working directory if it lies below."""
    folder = str(process.description.get("environment", {}).get("working directory", ""))
    prefix = os.path.join(folder, "") if folder else ""
    for frame in process.names.frames:
        yield frame, frame.file.removeprefix(prefix)


def _stack_texts(process: ProcessTrace, *, files: set[str], lines: bool, code: bool) -> list[str]:
    # `with determinism.record(...)` stands on another line for each of the two recordings.
    begun_in = process.description.get("begun_in")
    frames = [
        ""
        if [frame.file, frame.function] == begun_in
        else ":".join(
            (
                place if place in files else "",
                str(frame.line) if lines else "",
                frame.function,
                frame.code if code else "",
            )
        )
        for frame, place in _places(process)
    ]
    return ["\n".join(frames[number] for number in stack) for stack in process.names.stack_frames]
