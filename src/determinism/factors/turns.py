"""Runs threads, and processes, in turns: one at a time, always in the same order."""

from __future__ import annotations

import math
import os
import sys
import threading
import time

from determinism.source_files import Owner, owner_of

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from multiprocessing.process import BaseProcess
    from types import FrameType
    from typing import Any

    from determinism.run_spec import FactorRequest


# Makes the processes that the program starts run one after the other.

_LOOK_EACH = 0.05
_WAITS_AFTER = 2.0
"""Seconds: a process that used no CPU for this long is waiting for another one, which must then continue."""


def start_processes(request: FactorRequest) -> None:
    """Make the code that starts a process wait until that has ended, or is itself waiting.

    Daemonic processes that a library starts, those of pools and loaders, only wait for tasks; these are not waited for.
    """
    from multiprocessing.process import BaseProcess

    start = BaseProcess.start

    def start_and_wait(self: BaseProcess) -> None:
        start(self)
        if not self.daemon or _is_of_user(sys._getframe(1)):
            wait_until_idle(self)

    BaseProcess.start = start_and_wait  # type: ignore[method-assign]
    _leave_room_in_queues()


def _leave_room_in_queues() -> None:
    """Remove the size limits of queues: a process that waits for room does not end, and would run concurrently with the next."""
    from multiprocessing.queues import Queue

    make = Queue.__init__

    def make_without_limit(self: Any, maxsize: int = 0, **others: Any) -> None:
        make(self, 0, **others)

    Queue.__init__ = make_without_limit  # type: ignore[method-assign]


def wait_until_idle(process: BaseProcess, most_seconds: float = math.inf) -> None:
    """Wait until a process has ended, is itself waiting, or `most_seconds` have passed."""
    began = time.monotonic()
    stat = f"/proc/{process.pid}/stat"
    used, since = _cpu_seconds(stat), time.monotonic()
    while time.monotonic() - since < _WAITS_AFTER and time.monotonic() - began < most_seconds:
        process.join(_LOOK_EACH)
        if not process.is_alive():
            return
        now = _cpu_seconds(stat)
        if now != used:
            used, since = now, time.monotonic()


def _cpu_seconds(path: str) -> float:
    """Return the CPU time that a process or a thread has used, in user and system mode; 0 if unknown.

    Fields 14 and 15 of `/proc/<pid>/stat` (https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html).

    Args:
        path: Its `stat` file.
    """
    try:
        with open(path, "rb") as file:
            # The name of the program is in parentheses, and may itself contain spaces.
            user, system = file.read().rpartition(b")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


_PATIENCE_SECONDS = 5.0
_WORKING = 0.1
"""A thread waits `_PATIENCE_SECONDS` for its turn, and longer if the thread that has it used at least this fraction of the time on a CPU;
else that thread is waiting for something that this module does not know about."""
_SLICE_SECONDS = 0.002
"""How long all threads wait when none can continue."""

_allocate_lock = threading.Lock
_sleep = time.sleep


class Turn:
    """A thread's place in the order, and the time at which it wants to continue in any case."""

    def __init__(self) -> None:
        """Take a place, whose turn has not come yet."""
        self.gate = _allocate_lock()
        self.gate.acquire()
        self.wakes: float | None = None
        self.thread: int | None = None
        """The system's identifier of the thread, once it runs."""


class Turns:
    """The threads of this process that take turns, in the order in which they were started."""

    def __init__(self) -> None:
        """Begin with only the current thread."""
        self._mine = threading.local()
        self._begin()

    def _begin(self) -> None:
        own = self._mine.turn = self._holder = Turn()
        own.thread = threading.get_native_id()
        self._order = [own]
        self._seconds = 0.0
        self._idle = 0
        """How often the turn was handed on since a thread last made progress."""
        self._handed_on = 0
        self._is_free = False
        """Whether threads run freely, because one is waiting for something unknown."""

    def after_fork(self) -> None:
        """Begin again in the child, where only the thread that forked exists."""
        self._begin()

    @property
    def mine(self) -> Turn | None:
        """The current thread's turn; None if it does not take part."""
        return getattr(self._mine, "turn", None)

    def add(self) -> Turn:
        """Give a new thread the last place."""
        turn = Turn()
        self._order.append(turn)
        return turn

    def enter(self, turn: Turn) -> None:
        """Wait for the current thread's first turn."""
        self._mine.turn = turn
        turn.thread = threading.get_native_id()
        self._wait_at(turn)

    def leave(self, turn: Turn | None) -> None:
        """Let the next thread continue; this one takes no more turns."""
        self._mine.turn = None
        if turn in self._order:
            following = self._after(turn)
            self._order.remove(turn)
            self._idle = 0
            if following is not turn:
                self._hand_to(following)

    def wait(self, is_done: Callable[[], bool], seconds: float | None) -> bool:
        """Let other threads run until `is_done` returns True; return False if `seconds` pass first."""
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
        """Remove the place of a thread that could not be started."""
        self._order.remove(turn)

    def without_turn(self, work: Callable[[], None]) -> None:
        """Do work that waits for a thread that does not take part yet."""
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
        """Advance to the time at which the first thread wants to continue, since none can now."""
        self._idle = 0
        wanted = [turn.wakes - self._seconds for turn in self._order if turn.wakes is not None]
        seconds = min([_SLICE_SECONDS, *wanted])
        _sleep(max(seconds, 0.0))
        self._seconds += seconds

    def _hand_to(self, turn: Turn) -> None:
        self._handed_on += 1
        self._holder = turn
        if turn.gate.locked():
            turn.gate.release()

    def _wait_at(self, turn: Turn) -> None:
        while not self._is_free:
            seen, stat = self._handed_on, f"/proc/self/task/{self._holder.thread}/stat"
            used = _cpu_seconds(stat)
            if turn.gate.acquire(timeout=_PATIENCE_SECONDS):
                return
            if self._handed_on == seen and _cpu_seconds(stat) - used < _WORKING * _PATIENCE_SECONDS:
                self._is_free = True
                for other in self._order:
                    self._hand_to(other)


class TurnLock:
    """A lock that threads taking turns wait for by handing their turn on."""

    def __init__(self, turns: Turns) -> None:
        """Make an unlocked lock."""
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
        """Release the lock."""
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


# Makes the program's threads take turns: one runs at a time, until it would have to wait, and the next is always the
# same.
#
# Which threads exist and where they wait for each other depends on the program alone, unless something outside (a
# socket, another process) determines when a thread continues. A sleeping thread takes no turn: when no other thread can
# continue, sleepers wake in the order of their wake-up times.


def run_threads_in_turns() -> None:
    """Make the threads that the program starts from now on take turns."""
    turns = Turns()
    _replace_locks(turns)
    _replace_waiting(turns)
    _replace_starting(turns)
    os.register_at_fork(after_in_child=turns.after_fork)
    # Before Python exits, it waits for all threads, which must get their turns then.
    threading._register_atexit(lambda: turns.leave(turns.mine))  # type: ignore[attr-defined]


def _is_of_user(frame: FrameType) -> bool:
    return owner_of(frame) is Owner.USER


def _replace_locks(turns: Turns) -> None:
    import queue

    names: dict[str, Any] = vars(threading)
    names["Lock"] = names["_allocate_lock"] = lambda: TurnLock(turns)
    # Reentrant locks and queues have two implementations, of which the one in Python is built on these locks.
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


def _replace_starting(turns: Turns) -> None:
    import sys

    start = threading.Thread.start

    def start_by_turns(self: threading.Thread) -> None:
        if turns.mine is None or self.ident is not None or not _is_of_user(sys._getframe(1)):
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


# Makes the program's threads take turns, or perturbs them.

_DELAYS = (0.0, 0.004, 0.001, 0.009, 0.0, 0.002, 0.016)


def start(request: FactorRequest) -> None:
    """Replace how threads start."""
    if request.is_fixed("thread-schedule"):
        _in_turns()
    else:
        _perturb(request.number)


def _in_turns() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool

    def submit(self: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return _done(fn, args, kwargs)

    make_pool = ThreadPool.__init__

    def make_pool_of_one(self: ThreadPool, processes: Any = None, *args: Any, **kwargs: Any) -> None:
        make_pool(self, 1, *args, **kwargs)

    run_threads_in_turns()
    ThreadPoolExecutor.submit = submit  # type: ignore[method-assign, assignment]
    ThreadPool.__init__ = make_pool_of_one  # type: ignore[method-assign]


def _done(fn: Any, args: Any, kwargs: Any) -> Future[Any]:
    """Do the work immediately, and return its result as a pool would."""
    from concurrent.futures import Future

    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
    return future


def _perturb(number: int) -> None:
    sys.setswitchinterval(1e-6 if number % 2 else 5e-4)
    begin = threading.Thread.run
    count = iter(range(1 << 62))

    def run_late(self: threading.Thread) -> None:
        time.sleep(_DELAYS[(next(count) * (number + 2) + number) % len(_DELAYS)])
        begin(self)

    threading.Thread.run = run_late  # type: ignore[method-assign]
