"""Find and number the sites in user code that records come from.

Numbering a stack costs less than a microsecond: a frame is identified by its code object and instruction, and only new
ones are examined. If no user code is running, frames of libraries are used instead.
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
"""Number of a stack without user code."""


def innermost_user_frame() -> FrameType | None:
    """Return the innermost frame of user code."""
    at: FrameType | None = sys._getframe(1)
    while at is not None and owner_of(at) is not Owner.USER:
        at = at.f_back
    return at


def frame_text(frame: FrameType | None) -> str:
    """Return a frame as JSON: file, line, function and code; empty for None."""
    if frame is None:
        return ""
    code = frame.f_code
    return place_text(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname, frame.f_globals)


def place_text(path: str, line: int, function: str, module_globals: dict[str, Any] | None) -> str:
    """Return a place in a program as JSON: file, line, function and code.

    Args:
        path: File name from the code object.
        line: Line number, from 1.
        function: Qualified name of the function.
        module_globals: Globals of the module, through which a loader may supply the text; None if unavailable.
    """
    file = cell_name(path) or (path if path.startswith("<") else original_path(os.path.abspath(path)))
    source = redacted_code(linecache.getline(path, line, module_globals).strip()[:LONGEST_CODE])
    return json.dumps([file, line, function, source])


class Waiting:
    """A frame that waits for a call: while it waits, neither it nor its callers advance."""

    __slots__ = ("frame", "outside")

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.outside: int | None = None
        """Number of the current instructions of this frame and its callers, once a stack has been requested."""


class SiteTable:
    """Numbers stacks of user frames, and passes each new frame and stack to a writer."""

    def __init__(self, add_frame: Callable[[str], int], add_stack: Callable[[str], int]) -> None:
        """Take the functions that write a frame or a stack as JSON and return its number."""
        self.adding = add_frame, add_stack
        """The functions that write a frame and a stack."""
        self._add_frame, self._add_stack = self.adding
        self._owners: dict[int, Owner] = {}
        self._codes: list[CodeType] = []
        self._by_instruction: dict[tuple[int, ...], int] = {}
        self._outsides: dict[tuple[int, ...], int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {(): NO_STACK}
        self._frames: dict[tuple[str, int, str], int] = {}
        self.outermost: FrameType | None = None
        """Stacks end with this frame, in which the recording was started; None for whole stacks."""

    def stack(self, frame: FrameType | None, waiting: Sequence[Waiting] = ()) -> int:
        """Return the number of the stack of user frames from `frame` outwards; `NO_STACK` if there are none.

        Args:
            frame: The innermost frame.
            waiting: Some of the callers of `frame`, outermost first.
        """
        key = self._instructions(frame, waiting, len(waiting) - 1)
        number = self._by_instruction.get(key)
        return self._new_stack(frame, key) if number is None else number

    def stack_of_helper(self, frame: FrameType, waiting_at: FrameType | None, waiting: Sequence[Waiting]) -> int:
        """Return the number of a helper thread's stack: its own if it runs user code, else that of the waiting thread.

        Args:
            frame: The innermost frame of the helper thread.
            waiting_at: The innermost frame of the waiting thread.
            waiting: As for `stack`, for the waiting thread.
        """
        at: FrameType | None = frame
        while at is not None:
            known = self._owners.get(id(at.f_code))
            if (self._classify(at) if known is None else known) is Owner.USER:
                return self.stack(frame)
            at = at.f_back
        return self.stack(waiting_at, waiting)

    def _instructions(self, frame: FrameType | None, waiting: Sequence[Waiting], last: int) -> tuple[int, ...]:
        """Return code and instruction of each non-foreign frame, out to a waiting one, whose number follows.

        Frames beyond the maximum number of user frames in a stack are ignored; otherwise the cost of each record in a
        deep recursion would grow with its depth.
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
        # The list keeps the code object alive, so that its id is not reused.
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
        """Return the number of a stack that is known only by places in files, such as where a graph's op was created.

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
