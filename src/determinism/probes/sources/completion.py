"""Results in the order of completion, and queues. Fixed, results come in the order of submission."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from determinism.probes.runtime import FIRST_USES, Function, SourceFunction, Use, functions, in_order, partial_text

COMPLETION = "completion-order"


def _submitted(futures: Iterable[Any]) -> list[Any]:
    """Futures in the order in which they were passed; those of a set in a fixed order."""
    return in_order(futures) if isinstance(futures, set | frozenset) else list(futures)


def _numbers(futures: Iterable[Any], ordered: list[Any]) -> dict[int, int]:
    """The number of each future; empty if they are in a set and their order is unknown."""
    if isinstance(futures, set | frozenset) and any(FIRST_USES.number(future) is None for future in futures):
        return {}
    return {id(future): number for number, future in enumerate(ordered)}


def _as_completed(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    futures = arguments[0] if arguments else keywords.pop("fs")
    ordered = _submitted(futures)
    if use.is_fixed:
        return _one_after_the_other(use, ordered)
    return _each(use, function(ordered, *arguments[1:], **keywords), _numbers(futures, ordered))


def _each(use: Use, done: Iterator[Any], numbers: dict[int, int]) -> Iterator[Any]:
    for future in done:
        number = numbers.get(id(future))
        use.note(lambda number=number: None if number is None else str(number))  # type: ignore[misc]
        yield future


def _one_after_the_other(use: Use, futures: list[Any]) -> Iterator[Any]:
    for number, future in enumerate(futures):
        sys.modules["concurrent.futures"].wait([future])
        use.note(lambda number=number: str(number))  # type: ignore[misc]
        yield future


def _waits_for_all(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    wanted = arguments[2] if len(arguments) > 2 else keywords.get("return_when", "ALL_COMPLETED")
    return bool(wanted == "ALL_COMPLETED")


def _note_done(use: Use, done: Iterable[Any], numbers: dict[int, int]) -> None:
    found = [numbers.get(id(future)) for future in done]
    use.note(lambda: None if None in found else ",".join(str(number) for number in sorted(map(int, map(str, found)))))


def _wait(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if _waits_for_all(arguments, keywords):
        return function(*arguments, **keywords)
    futures = arguments[0] if arguments else keywords["fs"]
    ordered = _submitted(futures)
    if use.is_fixed and ordered:
        found = function(ordered[:1])
        result = type(found)(done=set(ordered[:1]), not_done=set(ordered[1:]))
    else:
        keywords = {name: value for name, value in keywords.items() if name != "fs"}
        result = function(futures, *arguments[1:], **keywords)
    _note_done(use, result[0], _numbers(futures, ordered))
    return result


def _asynchronous_wait(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if _waits_for_all(arguments[:1], keywords):
        return function(*arguments, **keywords)
    return _waited(use, function, arguments, keywords)


async def _waited(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    futures = arguments[0] if arguments else keywords["fs"]
    ordered = _submitted(futures)
    if use.is_fixed and ordered:
        await function(ordered[:1])
        result: Any = (set(ordered[:1]), set(ordered[1:]))
    else:
        result = await function(*arguments, **keywords)
    _note_done(use, result[0], _numbers(futures, ordered))
    return result


def _asynchronous(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    futures = arguments[0] if arguments else keywords.pop("fs")
    ordered = _submitted(futures)
    if use.is_fixed:
        return _Awaitables([sys.modules["asyncio"].ensure_future(future) for future in ordered])
    found = function(ordered, *arguments[1:], **keywords)
    if hasattr(type(found), "__aiter__"):
        # Since Python 3.13 it can be iterated in two ways; only the program knows in which.
        use.note(lambda: None)
        return found
    return (_awaited(use, future) for future in found)


class _Awaitables:
    """Tasks in the order in which they were passed, for both `for` and `async for`."""

    def __init__(self, tasks: list[Any]) -> None:
        self._tasks = iter(tasks)

    def __iter__(self) -> Iterator[Any]:
        return self._tasks

    def __aiter__(self) -> _Awaitables:
        return self

    async def __anext__(self) -> Any:
        for task in self._tasks:
            await sys.modules["asyncio"].wait([task])
            return task
        raise StopAsyncIteration


async def _awaited(use: Use, future: Any) -> Any:
    result = await future
    text, is_whole = partial_text(result)
    use.note(lambda: text, partial=not is_whole)
    return result


class Numbered:
    """Calls a function with a numbered value, in whichever process does the work, and numbers the result."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, numbered: tuple[int, Any]) -> tuple[int, Any]:
        """Call the function."""
        return numbered[0], self._function(numbered[1])


def _unordered(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`Pool.imap_unordered`: fixed, it is `imap`."""
    pool = function.__self__  # type: ignore[attr-defined]
    if use.is_fixed:
        return pool.imap(*arguments, **keywords)
    work: Collection[Any] = (*arguments, *(keywords.pop(name) for name in ("func", "iterable") if name in keywords))
    called, values, *rest = work
    return _completion_numbered(use, function(Numbered(called), enumerate(values), *rest, **keywords))


def _completion_numbered(use: Use, results: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    for number, result in results:
        use.note(lambda number=number: str(number))  # type: ignore[misc]
        yield result


COMPLETION_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(COMPLETION, _as_completed, "concurrent.futures._base", "as_completed"),
    *functions(COMPLETION, _wait, "concurrent.futures._base", "wait"),
    *functions(COMPLETION, _asynchronous, "asyncio.tasks", "as_completed"),
    *functions(COMPLETION, _asynchronous_wait, "asyncio.tasks", "wait"),
    *functions(COMPLETION, _unordered, "multiprocessing.pool", "Pool.imap_unordered"),
)


# Items from queues that several threads or processes fill. There is no order to which they could be fixed.

QUEUES = "queue-order"


def _taken(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    text, is_whole = partial_text(result)
    use.note(lambda: text, partial=not is_whole)
    return result


def _taken_among_threads(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`deque.popleft`: a queue only if there are other threads to fill it."""
    threads = getattr(sys.modules.get("threading"), "_dangling", ())
    # All threads that the program still references, including those that have ended and the main thread.
    return _taken(use, function, arguments, keywords) if len(threads) > 1 else function(*arguments, **keywords)


QUEUE_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(QUEUES, _taken, "queue", "Queue.get Queue.get_nowait SimpleQueue.get SimpleQueue.get_nowait"),
    *functions(QUEUES, _taken, "multiprocessing.queues", "Queue.get Queue.get_nowait SimpleQueue.get"),
    *functions(QUEUES, _taken_among_threads, "collections", "deque.popleft deque.pop"),
)
