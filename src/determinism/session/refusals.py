"""Objects whose position or connection to the outside no copy can hold, and what to tell the user about them."""

from __future__ import annotations

import io
import sys
import threading
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

from determinism.errors import StateError

LOCKS = (type(threading.Lock()), type(threading.RLock()))
"""Locks; those that belong to an object of a library guard it between calls, and hold nothing."""

_POSITION = "whose position cannot be copied"
_RUNNING = "which goes on by itself and cannot be copied"
_OUTSIDE = "which is connected to something outside this function and cannot be copied"

_BY_TYPE: tuple[tuple[type[Any] | tuple[type[Any], ...], str], ...] = (
    ((GeneratorType, AsyncGeneratorType, CoroutineType, FrameType), _POSITION),
    (LOCKS, "which cannot be copied"),
    (threading.Thread, _RUNNING),
)
_BY_NAME = {
    "asyncio.events.AbstractEventLoop": _RUNNING,
    "concurrent.futures._base.Executor": _RUNNING,
    "concurrent.futures._base.Future": _RUNNING,
    "multiprocessing.connection._ConnectionBase": _OUTSIDE,
    "multiprocessing.managers.BaseManager": _OUTSIDE,
    "multiprocessing.managers.BaseProxy": _OUTSIDE,
    "multiprocessing.pool.Pool": _RUNNING,
    "multiprocessing.process.BaseProcess": _RUNNING,
    "multiprocessing.queues.Queue": _OUTSIDE,
    "multiprocessing.queues.SimpleQueue": _OUTSIDE,
    "multiprocessing.shared_memory.SharedMemory": _OUTSIDE,
    "multiprocessing.synchronize.Condition": _OUTSIDE,
    "multiprocessing.synchronize.Event": _OUTSIDE,
    "multiprocessing.synchronize.SemLock": _OUTSIDE,
    "multiprocessing.sharedctypes.SynchronizedBase": _OUTSIDE,
    "mmap.mmap": _OUTSIDE,
    "_socket.socket": _OUTSIDE,
    "subprocess.Popen": _RUNNING,
    "sqlite3.Connection": _OUTSIDE,
    "tempfile._TemporaryFileWrapper": _POSITION,
    "torch.utils.data.dataloader._BaseDataLoaderIter": _POSITION,
}


def refusal(thing: object) -> str | None:
    """Why an object cannot be copied, whatever it holds; None if it may be."""
    if isinstance(thing, io.IOBase):
        return None if isinstance(thing, io.StringIO | io.BytesIO) or is_standard_stream(thing) else _POSITION
    for kind, reason in _BY_TYPE:
        if isinstance(thing, kind):
            return reason
    for base in type(thing).__mro__:
        named = _BY_NAME.get(f"{base.__module__}.{base.__qualname__}")
        if named is not None:
            return named
    return None


def is_standard_stream(thing: object) -> bool:
    """Whether `thing` is where the program prints or reads, which no result depends on."""
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return any(thing is stream or thing is getattr(stream, "buffer", stream) for stream in streams)


def hidden_reason(thing: object) -> str:
    """Why an object whose state only C code sees cannot be copied."""
    if hasattr(type(thing), "__next__"):
        return _POSITION
    return "which keeps its state where Python cannot copy it"


def refused(thing: object, path: str, reason: str) -> StateError:
    """The error that names an object which cannot be copied."""
    kind = type(thing)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return StateError(
        "state-uncopyable",
        f"{path} is of type {name}, {reason}: a second call would not start where the first one did. Create it inside "
        "the function, or pass what it is made from and make it freshly there; or check the whole program with "
        "`determinism check -- python ...`, which starts new processes.",
    )
