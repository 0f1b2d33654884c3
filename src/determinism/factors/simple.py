"""Fixes or perturbs single factors in a process: entropy, the clock, directory order."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import threading
import time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType, TracebackType
    from typing import Any

    from determinism.run_spec import FactorRequest


# Places memory at different addresses, with different alignments, in each run.

_PAGE = mmap.PAGESIZE
_SMALL = range(16, 4096, 16)
_OBJECTS = range(0, 480, 16)
_kept: list[object] = []


def start_addresses(request: FactorRequest) -> None:
    """Allocate blocks of many sizes first and free some of them, so that later ones are placed elsewhere."""
    if not request.is_perturbed("addresses"):
        return
    number = request.number
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(size) for size in _SMALL for _ in range(1 + number % 5)]
    for position, block in enumerate(blocks):
        if (position * (number + 2) + number) % 3:
            libc.free(block)
    _kept.append(mmap.mmap(-1, _PAGE * (1 + number % 61)))
    # Python has its own pools for small objects, which are in the same order in each run.
    _kept.append([bytes(size) for size in _OBJECTS for _ in range(number * 7 % 31)])


# Shows the program a different time and date in each run.

_DAY = 86400.0


def start_clock(request: FactorRequest) -> None:
    """Shift the functions of `time` that return the time of day; clocks that only measure durations are unchanged.

    `datetime.datetime` asks the system directly and is not shifted; `datetime.date.today` uses `time.time`.
    """
    shift = request.number * (37 * _DAY + 4321.0)
    clock, clock_ns, localtime, gmtime = time.time, time.time_ns, time.localtime, time.gmtime

    def shifted_localtime(seconds: Any = None) -> time.struct_time:
        return localtime(clock() + shift if seconds is None else seconds)

    def shifted_gmtime(seconds: Any = None) -> time.struct_time:
        return gmtime(clock() + shift if seconds is None else seconds)

    time.time = lambda: clock() + shift
    time.time_ns = lambda: clock_ns() + int(shift * 1e9)
    time.localtime = shifted_localtime
    time.gmtime = shifted_gmtime
    ctime, asctime, strftime = time.ctime, time.asctime, time.strftime
    time.ctime = lambda seconds=None: ctime(clock() + shift if seconds is None else seconds)
    time.asctime = lambda parts=None: asctime(shifted_localtime() if parts is None else parts)
    time.strftime = lambda text, parts=None: strftime(text, shifted_localtime() if parts is None else parts)


note_entropy: Callable[[], None] | None = None
"""Called whenever the program requests random bytes, which are the same in each run."""


def start_entropy(request: FactorRequest) -> None:
    """Replace `os.urandom`, which `uuid4`, `secrets` and `SystemRandom` use, and the default seed of `random.Random()`."""
    import random

    os.urandom = source = _Source()
    # `random` holds it under its own name.
    random._urandom = source  # type: ignore[attr-defined]
    seed = random.Random.seed

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed(self, int.from_bytes(source(32), "big") if a is None else a, version)

    random.Random.seed = seeded  # type: ignore[method-assign]
    random.seed = random._inst.seed


def fix_numpy(request: FactorRequest, numpy: ModuleType) -> None:
    """Give generators that NumPy seeds itself the same seeds in each run."""
    module = numpy.random.bit_generator

    def randbits(bits: int) -> int:
        return int.from_bytes(os.urandom((bits + 7) // 8), "big") >> (-bits % 8)

    module.randbits = randbits


class _Source:
    """A stream of bytes for each thread that is the same in each run."""

    def __init__(self) -> None:
        self._counters = threading.local()

    def __call__(self, size: int) -> bytes:
        if note_entropy is not None:
            note_entropy()
        made = b""
        while len(made) < size:
            count = getattr(self._counters, "count", 0)
            self._counters.count = count + 1
            made += hashlib.sha256(count.to_bytes(8, "little")).digest()
        return made[:size]


# Seeds Python's and NumPy's global generators before the program can draw from them.


def seed_python(request: FactorRequest) -> None:
    """Seed `random`."""
    import random

    random.seed(0)


def seed_forks(request: FactorRequest) -> None:
    """Seed `random` in each forked process, where Python reseeds it."""
    # Python registers its reseeding when the module is imported: later registrations run later.
    import random

    os.register_at_fork(after_in_child=lambda: random.seed(0))


def seed_numpy(request: FactorRequest, numpy: ModuleType) -> None:
    """Seed `numpy.random`."""
    numpy.random.seed(0)


# Replaces the iterator of `os.scandir` once its entries have been ordered.


class Entries:
    """The entries of a folder; a context manager, like that iterator."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the listing."""
        self._entries = iter(())


# Returns directory listings in a fixed order, or in a different one in each run.


def start_listings(request: FactorRequest) -> None:
    """Replace `os.listdir` and `os.scandir`, which `os.walk`, `glob` and `pathlib` use."""
    arrange = _Arrangement(request)
    listdir, scandir = os.listdir, os.scandir

    def arranged_listdir(path: Any = None) -> list[Any]:
        return arrange(listdir(path), os.fsdecode)

    def arranged_scandir(path: Any = None) -> Entries:
        with scandir(path) as entries:
            return Entries(arrange(list(entries), lambda entry: os.fsdecode(entry.name)))

    os.listdir = arranged_listdir
    os.scandir = arranged_scandir  # type: ignore[assignment]


class _Arrangement:
    def __init__(self, request: FactorRequest) -> None:
        self._is_fixed = request.is_fixed("listings")
        self._number = request.number

    def __call__(self, found: list[Any], name: Any) -> list[Any]:
        found.sort(key=name)
        if self._is_fixed:
            return found
        # Not with `random`, whose state belongs to the program. Rotating and reversing gives every small listing a new order.
        turn = self._number % len(found) if found else 0
        found = found[turn:] + found[:turn]
        return found[::-1] if self._number % 2 else found
