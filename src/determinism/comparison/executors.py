"""Compares the processes of two runs in worker processes, on this machine or on a cluster.

Comparing is a function of one pair of processes, so it can be mapped over an executor as `concurrent.futures` defines it. The results
are the same as without workers, and in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from determinism.comparison.ordered import compare_common_steps, compare_processes
from determinism.comparison.processes import ComparePairs, ProcessComparison, ProcessPair, compare_none
from determinism.errors import LaunchError, UsageError
from determinism.trace.opening import name_of, trace_folder
from determinism.trace.process import ProcessTrace, ReadSoFar
from determinism.trace.reader import StoredProcess
from determinism.types import Kind

MOST_ATTEMPTS = 3
"""How many pools are made in total if workers die."""
_MOST_WAITING = 4
"""How many pairs per worker are handed out at once, so that memory does not grow with the number of processes."""


@dataclass(frozen=True)
class _Side:
    """A process of a run, as another Python process opens it."""

    folder: str
    """Or its URL."""
    key: str
    description: dict[str, Any]
    from_step: int | None

    def opened(self) -> ProcessTrace:
        process = StoredProcess(trace_folder(self.folder), description=self.description, from_step=self.from_step)
        process.key = self.key
        return process


@dataclass(frozen=True)
class _Task:
    first: _Side
    second: _Side
    is_stopped: bool


@dataclass(frozen=True)
class _Done:
    """The result of a worker."""

    result: ProcessComparison | None
    truncated: tuple[bool, bool]
    records: int
    """How many records it read."""


def _compare(task: _Task) -> _Done:
    """Compare a pair of processes; runs in a worker."""
    first, second = task.first.opened(), task.second.opened()
    read = ReadSoFar.records
    result = (compare_common_steps if task.is_stopped else compare_processes)(first, second)
    records = ReadSoFar.records - read
    truncated = (first.truncated, second.truncated)
    if result.divergence is not None and result.divergence.kind is Kind.STRUCTURE and not task.is_stopped:
        # What that means depends on whether a run was cut off, which only all of its processes together can show.
        return _Done(None, truncated, records)
    return _Done(replace(result, traces=None), truncated, records)


@dataclass
class PairsOverExecutor:
    """Compares pairs of processes with the workers of an executor; may be reused for several runs."""

    make: Callable[[], Executor]
    """Makes the executor, and makes it again if its workers died."""
    workers: int
    warn: Callable[[str], None] = lambda message: None
    """Called when workers died."""

    def __call__(self, pairs: Sequence[ProcessPair], is_stopped: bool) -> Sequence[ProcessComparison | None]:
        """Compare the pairs.

        Raises:
            LaunchError: Workers died repeatedly.
        """
        found: dict[int, _Done] = {}
        for attempt in range(1, MOST_ATTEMPTS + 1):
            left = [number for number in range(len(pairs)) if number not in found]
            try:
                with self.make() as executor:
                    for number, done in self._each(executor, pairs, left, is_stopped):
                        ReadSoFar.records += done.records
                        found[number] = done
                break
            except BrokenExecutor as error:
                count = len(pairs) - len(found)
                if attempt == MOST_ATTEMPTS:
                    raise LaunchError(
                        "compare-worker-died",
                        f"Comparison workers died {attempt} times, and {count} of {len(pairs)} pairs of processes were not compared ({error}). "
                        "Memory may be short: try a smaller --jobs.",
                    ) from None
                self.warn(f"A comparison worker died; {count} of {len(pairs)} pairs of processes are compared again.")
        return [self._taken_over(pair, found[number]) for number, pair in enumerate(pairs)]

    def _each(
        self, executor: Executor, pairs: Sequence[ProcessPair], numbers: Sequence[int], is_stopped: bool
    ) -> Iterator[tuple[int, _Done]]:
        """Yield results as they arrive; no more pairs are handed out than the workers need."""
        waiting = iter(numbers)
        running: dict[Future[_Done], int] = {}

        def hand_out() -> None:
            for number in waiting:
                first, second = (
                    _Side(name_of(one.folder), one.key, one.description, one.from_step) for one in pairs[number]
                )
                running[executor.submit(_compare, _Task(first, second, is_stopped))] = number
                if len(running) >= _MOST_WAITING * self.workers:
                    return

        hand_out()
        while running:
            future = next(as_completed(running))
            yield running.pop(future), future.result()
            hand_out()

    @staticmethod
    def _taken_over(pair: ProcessPair, done: _Done) -> ProcessComparison | None:
        for process, truncated in zip(pair, done.truncated, strict=True):
            process.truncated = truncated
        return None if done.result is None else replace(done.result, traces=pair)


@contextmanager
def pairs_over(
    jobs: int, scheduler: str | None, warn: Callable[[str], None] = lambda message: None
) -> Iterator[ComparePairs]:
    """Provide a function that compares pairs of processes with workers on this machine or on a cluster.

    Args:
        jobs: How many workers; with 1 everything is compared in this process.
        scheduler: Address of a Dask scheduler; None for this machine.
        warn: Called when workers died.

    Raises:
        UsageError: Dask is not installed, or there is no scheduler at this address.
    """
    if scheduler is not None:
        with _dask_client(scheduler) as client:
            workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
            yield PairsOverExecutor(
                lambda: _BorrowedExecutor(client.get_executor(pure=False, retries=MOST_ATTEMPTS)), workers, warn
            )
        return
    if jobs == 1:
        yield compare_none
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Forking would copy the threads that show progress.
    yield PairsOverExecutor(lambda: ProcessPoolExecutor(jobs, get_context("spawn")), jobs, warn)


class _BorrowedExecutor(Executor):
    """An executor that is not shut down with the block that uses it."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """See `Executor.submit`."""
        future: Future[Any] = self._executor.submit(function, *arguments, **keywords)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing."""


def _dask_client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "dask-missing",
            "--scheduler needs Dask, which is not installed here, so nothing was compared. Install with: pip install distributed",
        ) from None
    try:
        return Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            "scheduler-unreachable",
            f"There is no Dask scheduler at {address} ({type(error).__name__}: {str(error)[:200]}), so nothing was compared. Start one with "
            "`dask scheduler`, and give the address that it prints.",
        ) from None
