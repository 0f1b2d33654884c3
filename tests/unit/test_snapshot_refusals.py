"""An object that cannot be copied is an error that gives the path to it; an object that needs no copy is not an error."""

from __future__ import annotations

import abc
import argparse
import collections
import contextlib
import contextvars
import datetime
import decimal
import enum
import functools
import inspect
import itertools
import json
import logging
import multiprocessing
import os
import pathlib
import queue
import re
import socket
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar
from unittest import mock

import numpy as np
import pytest

from determinism.errors import StateError
from determinism.session.snapshot import Snapshot

T = TypeVar("T")

handle: Any = None

logger = logging.getLogger("training")


class Color(enum.Enum):
    """An enumeration."""

    RED = ()


class Point(NamedTuple):
    """A named tuple."""

    x: list[int]


class Base(abc.ABC, Generic[T]):
    """An abstract class with methods of every kind."""

    @functools.cached_property
    def first(self) -> int:
        return 1

    @functools.singledispatchmethod
    def dispatch(self, value: Any) -> None: ...

    @property
    @abc.abstractmethod
    def name(self) -> str: ...


@pytest.mark.parametrize(
    "thing",
    [
        *(Color, Color.RED, Point([1]), Point, Base, Base[int], T, Callable[..., int], int | str, list[int]),
        *(logger, logging.StreamHandler(), sys.stdout, sys.stderr, argparse.ArgumentParser(), mock.Mock()),
        *(re.compile("a"), os.environ, pathlib.Path(), datetime.datetime.now(), decimal.Decimal(1), json.JSONDecoder()),
        *(
            threading.Event(),
            threading.Condition(),
            threading.Semaphore(),
            contextlib.ExitStack(),
            inspect.signature(len),
        ),
        *(weakref.WeakSet([Color]), weakref.WeakKeyDictionary({Color: 1}), memoryview(bytearray(b"a")), {}.keys()),
        *(len, [].append, print, ValueError("x"), object(), slice(1), collections.ChainMap({}), hash, os, types),
        *(np.random.rand, np.float64(1), np.dtype("f4"), np.add, np.vectorize(abs), np.random.SeedSequence(1)),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_objects_that_need_no_copy_or_have_one_are_accepted(thing: Any) -> None:
    snapshot = Snapshot.take(print, (thing,), {"k": [thing]})
    snapshot.restore()
    snapshot.restore()


def numbers() -> Iterator[int]:
    """Yield numbers practically forever."""
    yield from range(10**9)


class Opaque(threading.Thread):
    """A thread that was never started."""


@pytest.mark.parametrize(
    "make",
    [
        numbers,
        lambda: map(abs, [1]),
        lambda: zip([1], [2], strict=True),
        lambda: enumerate([1]),
        lambda: iter([1]),
        lambda: itertools.cycle([1]),
        itertools.count,
        lambda: itertools.chain([1]),
        lambda: open(__file__),
        lambda: open(__file__, "rb"),
        socket.socket,
        threading.Lock,
        threading.RLock,
        Opaque,
        multiprocessing.Queue,
        multiprocessing.Event,
        lambda: multiprocessing.Pipe()[0],
        lambda: multiprocessing.Process(target=print),
        queue.SimpleQueue,
        lambda: (lambda: (yield))(),
    ],
)
def test_an_object_that_cannot_be_copied_is_named(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    thing = make()
    calls: list[int] = []

    def closure() -> None:
        calls.append(1)
        repr(thing)

    def by_global() -> None:
        calls.append(handle)

    def argument(*_: Any, **__: Any) -> None:
        calls.append(1)

    kind = type(thing).__name__
    expect_refusal(r"closure\['thing'\]", kind, closure)
    expect_refusal(r"args\[1\]\['a'\]\[0\]\.handle", kind, argument, 1, {"a": (SimpleNamespace(handle=thing),)})
    expect_refusal(r"kwargs\['k'\]", kind, argument, k=thing)
    expect_refusal(r"func.closure\['thing'\]", kind, functools.partial(closure))
    monkeypatch.setattr(sys.modules[__name__], "handle", thing)
    expect_refusal(r"globals\(\)\['handle'\]", kind, by_global)
    assert calls == []
    if hasattr(thing, "close") and not isinstance(thing, multiprocessing.Process):
        thing.close()


def expect_refusal(path: str, kind: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Check that taking a snapshot fails, and that the error says where, what and what to do."""
    with pytest.raises(StateError, match=f"^{path} is of type .*{kind}") as caught:
        Snapshot.take(function, args, kwargs)
    assert caught.value.identifier == "state-uncopyable"
    assert "determinism check -- python" in caught.value.message


def test_a_change_that_cannot_be_undone_is_an_error() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    def run() -> None:
        variable.set(1)

    snapshot = Snapshot.take(run, (), {})
    run()
    with pytest.raises(StateError, match=r"closure\['variable'\].* cannot be restored") as caught:
        snapshot.restore()
    assert caught.value.identifier == "state-unrestored"


def test_torch_is_not_imported() -> None:
    code = "import sys; from determinism.session.snapshot import Snapshot; Snapshot.take(len, (), {}).restore(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
