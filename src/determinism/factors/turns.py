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


# Lets the processes that the program starts run one after the other.

_LOOK_EACH = 0.05
_WAITS_AFTER = 2.0
"""Seconds: a process that used no CPU for so long waits for another one, which then must go on."""


def start_processes(request: FactorRequest) -> None:
    """Let whoever starts a process wait until it has ended, or waits itself.

    Daemonic processes that a library starts, those of pools and loaders, only wait for tasks; nobody waits for these.
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
    """Let a process put all that it makes into a queue: one that waits for room does not end, and the next is started beside it."""
    from multiprocessing.queues import Queue

    make = Queue.__init__

    def make_without_limit(self: Any, maxsize: int = 0, **others: Any) -> None:
        make(self, 0, **others)

    Queue.__init__ = make_without_limit  # type: ignore[method-assign]


def wait_until_idle(process: BaseProcess, most_seconds: float = math.inf) -> None:
    """Wait until a process has ended, or waits itself, or so many seconds are over."""
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
    """What a process or a thread has used of the CPU, in its own code and in the system; 0 if that cannot be told.

    Fields 14 and 15 of `/proc/<pid>/stat` (https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html).

    Args:
        path: Where the system says so.
    """
    try:
        with open(path, "rb") as file:
            # The name of the program is in parentheses, and may itself hold spaces.
            user, system = file.read().rpartition(b")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


_PATIENCE_SECONDS = 5.0
_WORKING = 0.1
"""So long a thread waits for its turn, and then on if whoever has it used at least this part of that time on a CPU; one that did not waits
for something that this module does not know of."""
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
        self.thread: int | None = None
        """What the system calls the thread, once it runs."""


class Turns:
    """The threads of this process that take turns, in the order in which they were started."""

    def __init__(self) -> None:
        """Only the thread that makes this takes part."""
        self._mine = threading.local()
        self._begin()

    def _begin(self) -> None:
        own = self._mine.turn = self._holder = Turn()
        own.thread = threading.get_native_id()
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
        turn.thread = threading.get_native_id()
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


# Lets the program's threads take turns: one runs at a time, until it would have to wait, and the next is always the
# same.
#
# Which threads there are and where they wait for each other follows from the program alone, as long as nothing from
# outside (a socket, another process) decides when a thread goes on. Sleeping takes no turn: it ends in the order of
# the moments at which sleepers want to wake, when no other thread can go on.


def run_threads_in_turns(is_own: Callable[[FrameType], bool] | None = None) -> None:
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


# Lets the program's threads take turns, or gets in their way.

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
    """Do the work at once, and give its result as a pool would."""
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
