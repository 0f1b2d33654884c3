"""Gives equal names of two processes equal numbers, so that columns of numbers can be compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from determinism.trace.chunk import Array
from determinism.trace.names import Names
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import Table

_SHARE_OF_COMMON_STACKS = 0.5


class Numbers(NamedTuple):
    """For both processes: the canonical number of each own number; the last entry stands for "absent"."""

    first: Array
    second: Array


class Canonical:
    """Canonical numbers of ops, modules, stacks, arguments and layouts of two processes."""

    def __init__(self, first: ProcessTrace, second: ProcessTrace) -> None:
        """Match the names of both.

        Stacks match by file, line and function, with files below the working directory named relative to it. If most
        stacks differ, the two runs ran different versions of a program: then lines are left out.
        """
        self.ops = _match(first.names.texts(Table.OP), second.names.texts(Table.OP))
        self.modules = _match(first.names.texts(Table.MODULE), second.names.texts(Table.MODULE))
        self.arguments = _match(first.names.texts(Table.ARGUMENTS), second.names.texts(Table.ARGUMENTS))
        self.layouts = _match(first.names.texts(Table.LAYOUT), second.names.texts(Table.LAYOUT))
        with_lines = [_stack_texts(process, lines=True) for process in (first, second)]
        common = len(set(with_lines[0]) & set(with_lines[1]))
        self.has_lines = common >= _SHARE_OF_COMMON_STACKS * min(len(set(texts)) for texts in with_lines)
        if not self.has_lines:
            with_lines = [_stack_texts(process, lines=False) for process in (first, second)]
        self.stacks = _match(*with_lines)


def _match(first: Iterable[str], second: Iterable[str]) -> Numbers:
    numbers: dict[str, int] = {}

    def of(texts: Iterable[str]) -> Array:
        return np.array([*(numbers.setdefault(text, len(numbers)) for text in texts), -1], dtype=np.int32)

    return Numbers(of(first), of(second))


def _stack_texts(process: ProcessTrace, *, lines: bool) -> list[str]:
    names: Names = process.names
    folder = str(process.description.get("environment", {}).get("working directory", ""))
    place = _relative(folder)
    frames = [f"{place(f.file)}:{f.line if lines else ''}:{f.function}" for f in names.frames]
    return ["\n".join(frames[number] for number in stack) for stack in names.stack_frames]


def _relative(folder: str) -> Callable[[str], str]:
    prefix = os.path.join(folder, "")
    return lambda file: file.removeprefix(prefix) if folder else file
