"""Lets the program's threads take turns: one runs at a time, until it would have to wait, and the next is always the same.

Which threads there are and where they wait for each other follows from the program alone, as long as nothing from outside (a
socket, another process) decides when a thread goes on. Sleeping takes no turn: it ends in the order of the moments at
which sleepers want to wake, when no other thread can go on.
"""

from __future__ import annotations

import os
import threading
import time

from determinism.code_owner import Owner, owner_of
from determinism.factors.turns import TurnLock, Turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

_sleep = time.sleep


def take_turns(is_own: Callable[[FrameType], bool] | None = None) -> None:
    """Have the threads that the program starts from now on take turns.

    Args:
        is_own: Whether code that starts a thread is the program's; by default told by where it lies.
    """
    turns = Turns()
    _replace_locks(turns)
    _replace_waiting(turns)
    _replace_starting(turns, is_own or _is_of_user)
    os.register_at_fork(after_in_child=turns.after_fork)
    # Before Python ends it waits for all threads, which must have their turns then.
    threading._register_atexit(lambda: turns.leave(turns.mine))  # type: ignore[attr-defined]


def _is_of_user(frame: FrameType) -> bool:
    return owner_of(frame) is Owner.USER


def _replace_locks(turns: Turns) -> None:
    import queue

    names: dict[str, Any] = vars(threading)
    names["Lock"] = names["_allocate_lock"] = lambda: TurnLock(turns)
    # Locks that may be taken again and queues have two versions, of which the one in Python is made of these locks.
    names["_CRLock"] = None
    vars(queue)["SimpleQueue"] = vars(queue)["_PySimpleQueue"]


def _replace_waiting(turns: Turns) -> None:
    join = threading.Thread.join

    def join_by_turns(self: threading.Thread, timeout: float | None = None) -> None:
        turn = getattr(self, "_determinism_turn", None)
        if turn is not None and turns.mine is not None and self is not threading.current_thread():
            if not turns.wait(lambda: not turns.takes_turns(turn), None if timeout is None else max(timeout, 0.0)):
                return
            timeout = None
        join(self, timeout)

    def sleep(seconds: float, /) -> None:
        if turns.mine is None or not seconds > 0:
            _sleep(seconds)
        else:
            turns.wait(lambda: False, seconds)

    threading.Thread.join = join_by_turns  # type: ignore[method-assign]
    vars(time)["sleep"] = sleep


def _replace_starting(turns: Turns, is_own: Callable[[FrameType], bool]) -> None:
    import sys

    start = threading.Thread.start

    def start_by_turns(self: threading.Thread) -> None:
        if turns.mine is None or self.ident is not None or not is_own(sys._getframe(1)):
            start(self)
            return
        run, turn = self.run, turns.add()

        def run_by_turns() -> None:
            vars(self).pop("run", None)
            turns.enter(turn)
            try:
                run()
            finally:
                turns.leave(turn)

        vars(self).update(run=run_by_turns, _determinism_turn=turn)
        try:
            turns.without_turn(lambda: start(self))
        except BaseException:
            turns.withdraw(turn)
            raise

    threading.Thread.start = start_by_turns  # type: ignore[method-assign]
