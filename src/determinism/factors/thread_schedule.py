"""Lets the program's threads take turns, or gets in their way."""

from __future__ import annotations

import sys
import threading
import time

from determinism.factors.thread_turns import take_turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Any

    from determinism.factors.request import FactorRequest

_DELAYS = (0.0, 0.004, 0.001, 0.009, 0.0, 0.002, 0.016)


def start(request: FactorRequest) -> None:
    """Replace how threads start."""
    if request.is_fixed("thread-schedule"):
        _in_turns()
    else:
        _stir(request.number)


def _in_turns() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool

    def submit(self: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return _done(fn, args, kwargs)

    make_pool = ThreadPool.__init__

    def make_pool_of_one(self: ThreadPool, processes: Any = None, *args: Any, **kwargs: Any) -> None:
        make_pool(self, 1, *args, **kwargs)

    take_turns()
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


def _stir(number: int) -> None:
    sys.setswitchinterval(1e-6 if number % 2 else 5e-4)
    begin = threading.Thread.run
    count = iter(range(1 << 62))

    def run_late(self: threading.Thread) -> None:
        time.sleep(_DELAYS[(next(count) * (number + 2) + number) % len(_DELAYS)])
        begin(self)

    threading.Thread.run = run_late  # type: ignore[method-assign]
