"""Turns that threads take: one runs at a time, until it would have to wait, and the next is always the same."""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_SECONDS = 5.0
"""So long a thread waits for its turn; whoever has it then waits for something that this module does not know of."""
_SLICE_SECONDS = 0.002
"""How long all wait where no thread can go on."""

_allocate_lock = threading.Lock
_sleep = time.sleep


class Turn:
    """A thread's place in the order, and the moment at which it wants to go on whatever happens."""

    def __init__(self) -> None:
        """Take a place; its turn has not come."""
        self.gate = _allocate_lock()
        self.gate.acquire()
        self.wakes: float | None = None


class Turns:
    """The threads of this process that take turns, in the order in which they were started."""

    def __init__(self) -> None:
        """Only the thread that makes this takes part."""
        self._mine = threading.local()
        self._begin()

    def _begin(self) -> None:
        own = self._mine.turn = Turn()
        self._order = [own]
        self._seconds = 0.0
        self._idle = 0
        """How often the turn was handed on since a thread went on."""
        self._handed_on = 0
        self._is_free = False
        """Whether threads run as they like, since one waits for something else."""

    def after_fork(self) -> None:
        """Only the thread that forked goes on."""
        self._begin()

    @property
    def mine(self) -> Turn | None:
        """The current thread's turn; None if it takes none."""
        return getattr(self._mine, "turn", None)

    def add(self) -> Turn:
        """Give a new thread the last place."""
        turn = Turn()
        self._order.append(turn)
        return turn

    def enter(self, turn: Turn) -> None:
        """Wait for the current thread's first turn."""
        self._mine.turn = turn
        self._wait_at(turn)

    def leave(self, turn: Turn | None) -> None:
        """Let the next thread go on; this one takes no more turns."""
        self._mine.turn = None
        if turn in self._order:
            following = self._after(turn)
            self._order.remove(turn)
            self._idle = 0
            if following is not turn:
                self._hand_to(following)

    def wait(self, is_done: Callable[[], bool], seconds: float | None) -> bool:
        """Let other threads run until something is done, and say whether it is; False once so many seconds have passed."""
        turn = self._mine.turn
        until = time.monotonic() + (seconds or 0.0)
        turn.wakes = None if seconds is None else self._seconds + seconds
        try:
            while not is_done():
                if self._is_free:
                    if seconds is not None and time.monotonic() >= until:
                        return False
                    _sleep(_SLICE_SECONDS)
                elif turn.wakes is not None and turn.wakes <= self._seconds:
                    return False
                else:
                    self._hand_on(turn)
            return True
        finally:
            turn.wakes = None
            self._idle = 0

    def takes_turns(self, turn: Turn) -> bool:
        """Whether the thread with this turn is still among those that take turns."""
        return turn in self._order

    def withdraw(self, turn: Turn) -> None:
        """Take back the place of a thread that could not be started."""
        self._order.remove(turn)

    def without_turn(self, work: Callable[[], None]) -> None:
        """Do something that waits for a thread which takes no part yet."""
        turn = self.mine
        self._mine.turn = None
        try:
            work()
        finally:
            self._mine.turn = turn

    def _after(self, turn: Turn) -> Turn:
        return self._order[(self._order.index(turn) + 1) % len(self._order)]

    def _hand_on(self, turn: Turn) -> None:
        self._idle += 1
        if self._idle > len(self._order):
            self._pass_time()
        following = self._after(turn)
        if following is not turn:
            self._hand_to(following)
            self._wait_at(turn)

    def _pass_time(self) -> None:
        """Nobody can go on: go to the moment at which the first one wants to."""
        self._idle = 0
        wanted = [turn.wakes - self._seconds for turn in self._order if turn.wakes is not None]
        seconds = min([_SLICE_SECONDS, *wanted])
        _sleep(max(seconds, 0.0))
        self._seconds += seconds

    def _hand_to(self, turn: Turn) -> None:
        self._handed_on += 1
        if turn.gate.locked():
            turn.gate.release()

    def _wait_at(self, turn: Turn) -> None:
        while not self._is_free:
            seen = self._handed_on
            if turn.gate.acquire(timeout=_PATIENCE_SECONDS):
                return
            if self._handed_on == seen:
                self._is_free = True
                for other in self._order:
                    self._hand_to(other)


class TurnLock:
    """A lock for which threads that take turns wait by handing theirs on."""

    def __init__(self, turns: Turns) -> None:
        """Make it, not held."""
        self._turns = turns
        self._lock = _allocate_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as `threading.Lock` does."""
        if self._lock.acquire(False):
            return True
        if not blocking or self._turns.mine is None:
            return self._lock.acquire(blocking, timeout)
        return self._turns.wait(lambda: self._lock.acquire(False), None if timeout < 0 else timeout)

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def locked(self) -> bool:
        """Whether any thread holds it."""
        return self._lock.locked()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
