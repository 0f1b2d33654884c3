"""Finds and numbers the places in user code that a record comes from.

Numbering a stack costs less than a microsecond: a frame is known by its code object and instruction, and only a new one
is looked at closely. Where no user code runs, frames of libraries stand in.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any

from determinism.redaction import redacted_code
from determinism.source_files import Owner, cell_name, original_path, owner_of, owner_of_file

_MAX_FRAMES = 48
LONGEST_CODE = 400

NO_STACK = -1
"""Number of the stack that holds no user code."""


def innermost_user_frame() -> FrameType | None:
    """The user code that is running."""
    at: FrameType | None = sys._getframe(1)
    while at is not None and owner_of(at) is not Owner.USER:
        at = at.f_back
    return at


def frame_text(frame: FrameType | None) -> str:
    """A frame as JSON text: file, line, function and code; empty for none."""
    if frame is None:
        return ""
    code = frame.f_code
    return place_text(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname, frame.f_globals)


def place_text(path: str, line: int, function: str, module_globals: dict[str, Any] | None) -> str:
    """A place in a program as JSON text: file, line, function and code.

    Args:
        path: As the code object has it.
        line: From 1.
        function: Its qualified name.
        module_globals: Of its module, through which a loader may give the text; None if there are none.
    """
    file = cell_name(path) or (path if path.startswith("<") else original_path(os.path.abspath(path)))
    source = redacted_code(linecache.getline(path, line, module_globals).strip()[:LONGEST_CODE])
    return json.dumps([file, line, function, source])


class Waiting:
    """A frame that waits for what it called: while it does, nothing outside of it moves."""

    __slots__ = ("frame", "outside")

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.outside: int | None = None
        """Number of the instructions that the frames from this one outwards are at, once a stack was asked for."""


class SiteTable:
    """Numbers stacks of user frames, and hands each new frame and stack to a writer."""

    def __init__(self, add_frame: Callable[[str], int], add_stack: Callable[[str], int]) -> None:
        """Take the functions that write a frame or a stack as JSON text and give its number."""
        self.adding = add_frame, add_stack
        """What writes a frame, and what writes a stack."""
        self._add_frame, self._add_stack = self.adding
        self._owners: dict[int, Owner] = {}
        self._codes: list[CodeType] = []
        self._by_instruction: dict[tuple[int, ...], int] = {}
        self._outsides: dict[tuple[int, ...], int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {(): NO_STACK}
        self._frames: dict[tuple[str, int, str], int] = {}
        self.outermost: FrameType | None = None
        """Stacks end with this frame: the one that a recording was begun in. None: they go on to the program's start."""

    def stack(self, frame: FrameType | None, waiting: Sequence[Waiting] = ()) -> int:
        """Number of the stack of user frames from `frame` outwards; `NO_STACK` if there is none.

        Args:
            frame: The innermost frame.
            waiting: Frames that `frame` was called from, outermost first; not all of them.
        """
        key = self._instructions(frame, waiting, len(waiting) - 1)
        number = self._by_instruction.get(key)
        return self._new_stack(frame, key) if number is None else number

    def stack_of_helper(self, frame: FrameType, waiting_at: FrameType | None, waiting: Sequence[Waiting]) -> int:
        """Number of the stack of a thread that works for another one: its own if user code runs in it, else that of the other.

        Args:
            frame: The innermost frame of the thread.
            waiting_at: The innermost frame of the thread that waits for it.
            waiting: As for `stack`, of that thread.
        """
        at: FrameType | None = frame
        while at is not None:
            known = self._owners.get(id(at.f_code))
            if (self._classify(at) if known is None else known) is Owner.USER:
                return self.stack(frame)
            at = at.f_back
        return self.stack(waiting_at, waiting)

    def _instructions(self, frame: FrameType | None, waiting: Sequence[Waiting], last: int) -> tuple[int, ...]:
        """Code and instruction of each frame that is not foreign, out to a waiting one, whose number then follows.

        Beyond as many of the user's frames as a stack shows none is looked at: in a deep recursion each record would cost
        as much as the stack is deep.
        """
        owners = self._owners
        key: list[int] = []
        left, user = _MAX_FRAMES, Owner.USER
        outermost = self.outermost
        innermost_waiting = waiting[last].frame if last >= 0 else None
        at = frame
        while at is not None:
            if at is innermost_waiting:
                key.append(self._outside(waiting, last))
                break
            code = id(at.f_code)
            known = owners.get(code)
            if known is None:
                known = self._classify(at)
            if known:
                key += (code, at.f_lasti)
                if known is user:
                    left -= 1
                    if not left:
                        break
            if at is outermost:
                break
            at = at.f_back
        return tuple(key)

    def _outside(self, waiting: Sequence[Waiting], last: int) -> int:
        one = waiting[last]
        if one.outside is None:
            key = self._instructions(one.frame, waiting, last - 1)
            one.outside = self._outsides.setdefault(key, len(self._outsides))
        return one.outside

    def _classify(self, frame: FrameType) -> Owner:
        # The list keeps the code object alive: its id would otherwise be given to another one.
        self._codes.append(frame.f_code)
        known = self._owners[id(frame.f_code)] = owner_of(frame)
        return known

    def _new_stack(self, frame: FrameType | None, key: tuple[int, ...]) -> int:
        numbers: list[int] = []
        of_libraries: list[int] = []
        at = frame
        while at is not None and len(numbers) < _MAX_FRAMES:
            owner = self._owners[id(at.f_code)]
            if owner is Owner.USER:
                numbers.append(self._frame_number(at))
            elif owner is Owner.LIBRARY and len(of_libraries) < _MAX_FRAMES:
                of_libraries.append(self._frame_number(at))
            if at is self.outermost:
                break
            at = at.f_back
        frames = tuple(numbers or of_libraries)
        number = self._by_frames.get(frames)
        if number is None:
            number = self._by_frames[frames] = self._add_stack(json.dumps(frames))
        self._by_instruction[key] = number
        return number

    def stack_of_places(self, places: Iterable[tuple[str, int, str]]) -> int:
        """Number of a stack that is known by its places in files only, such as where a graph's op was made.

        Args:
            places: File, line and function of each frame, innermost first.
        """
        found: dict[Owner, list[int]] = {Owner.USER: [], Owner.LIBRARY: []}
        for file, line, function in places:
            of_owner = found.get(owner_of_file(file))
            if of_owner is not None and len(of_owner) < _MAX_FRAMES:
                of_owner.append(self._place_number(file, line, function, None))
        frames = tuple(found[Owner.USER] or found[Owner.LIBRARY])
        number = self._by_frames.get(frames)
        if number is None:
            number = self._by_frames[frames] = self._add_stack(json.dumps(frames))
        return number

    def _frame_number(self, frame: FrameType) -> int:
        code = frame.f_code
        line = frame.f_lineno or code.co_firstlineno
        return self._place_number(code.co_filename, line, code.co_qualname, frame.f_globals)

    def _place_number(self, path: str, line: int, function: str, module_globals: dict[str, Any] | None) -> int:
        key = (path, line, function)
        number = self._frames.get(key)
        if number is None:
            number = self._frames[key] = self._add_frame(place_text(path, line, function, module_globals))
        return number
