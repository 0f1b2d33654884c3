"""The contents of every kind of object are restored in place: containers, arrays, generators, buffers."""

from __future__ import annotations

import array
import collections
import contextvars
import io
import logging
import queue
import random
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from determinism.session.snapshot import Snapshot

logger = logging.getLogger("training")


def restored(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Results of two calls with a restore in between, and of a third call without one."""
    snapshot = Snapshot.take(function, args, kwargs)
    first = function(*args, **kwargs)
    snapshot.restore()
    second = function(*args, **kwargs)
    third = function(*args, **kwargs)
    snapshot.restore()
    return first, second, third


def test_containers_keep_their_identity_and_order() -> None:
    nested = {"list": [1, 2], "set": {3, 1}, "deque": collections.deque([1, 2], maxlen=3), "bytes": bytearray(b"ab")}
    ordered = collections.OrderedDict(a=1, b=2)
    default: collections.defaultdict[str, list[int]] = collections.defaultdict(list, a=[1])
    counter = collections.Counter("abc")
    numbers = array.array("d", [1.0])
    holder = (nested, ordered, default, counter, numbers)
    identities = [id(item) for item in (*nested.values(), *holder)]

    def change(_: Any) -> None:
        nested["list"].append(3)  # type: ignore[attr-defined]
        nested["set"].discard(3)  # type: ignore[attr-defined]
        nested["deque"].extend([7, 8])  # type: ignore[attr-defined]
        nested["bytes"] += b"cd"  # type: ignore[operator]
        nested["more"] = 1  # type: ignore[assignment]
        ordered.move_to_end("a")
        default["b"].append(1)
        default.default_factory = None
        counter.update("aaa")
        numbers.append(2.0)

    snapshot = Snapshot.take(change, (holder,), {})
    change(holder)
    snapshot.restore()
    assert nested == {"list": [1, 2], "set": {1, 3}, "deque": collections.deque([1, 2]), "bytes": bytearray(b"ab")}
    assert list(ordered) == ["a", "b"] and dict(default) == {"a": [1]} and default.default_factory is list
    assert counter == collections.Counter("abc") and numbers.tolist() == [1.0]
    assert identities == [id(item) for item in (*nested.values(), *holder)]


def test_a_set_is_iterated_in_the_same_order_each_time() -> None:
    names = {f"name{i}" for i in range(50)}
    for i in range(0, 50, 3):
        names.discard(f"name{i}")

    def visit(members: set[str]) -> list[str]:
        order = list(members)
        members.update(f"other{i}" for i in range(500))
        members.difference_update(f"other{i}" for i in range(500))
        return order

    first, second, _ = restored(visit, names)
    assert first == second


def test_cycles_and_deep_graphs() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    loop.append({"back": loop})
    deep: list[Any] = []
    leaf = deep
    for _ in range(50_000):
        leaf.append([])
        leaf = leaf[0]

    def run(*_: Any) -> int:
        loop.append(2)
        leaf.append(3)
        return len(loop) + len(leaf)

    first, second, third = restored(run, loop, deep)
    assert first == second and first != third
    assert loop[1] is loop and leaf == []


def test_numpy_arrays_and_generators() -> None:
    base = np.arange(12.0)
    base[0] = np.frombuffer(b"\x01\x00\x00\x00\x00\x00\xf8\xff", dtype=np.float64)[0]
    view = base[::2]
    objects = np.array([[1], None], dtype=object)
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    generator, legacy = np.random.default_rng(3), np.random.RandomState(4)
    before = base.tobytes()

    def run(view: Any, generator: np.random.Generator, legacy: Any, objects: Any, masked: Any) -> tuple[Any, ...]:
        view += generator.normal() + legacy.normal()
        base.shape = (3, 4)
        base.flags.writeable = False
        objects[0].append(2)
        objects[1] = "new"
        masked.mask[0] = True
        child = generator.spawn(1)[0].random()
        return view.tobytes(), child, legacy.normal(), objects.tolist(), masked.tolist()

    first, second, _ = restored_once(run, view, generator, legacy, objects, masked)
    assert first == second
    assert base.shape == (12,) and base.flags.writeable and base.tobytes() == before
    assert objects.tolist() == [[1], None] and masked.tolist() == [1.0, None]


def restored_once(function: Callable[..., Any], *args: Any) -> tuple[Any, Any, None]:
    """Results of two calls with a restore after each."""
    snapshot = Snapshot.take(function, args, {})
    first = repr(function(*args))
    snapshot.restore()
    second = repr(function(*args))
    snapshot.restore()
    return first, second, None


def test_a_resized_array_is_restored() -> None:
    values = np.arange(4.0)

    def run(values: Any) -> None:
        values.resize((100,), refcheck=False)
        values[:] = 7

    snapshot = Snapshot.take(run, (values,), {})
    run(values)
    snapshot.restore()
    assert values.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_generators_buffers_and_context() -> None:
    own = random.Random(3)
    text, raw = io.StringIO("abc"), io.BytesIO(b"abc")
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    variable.set(1)
    local = threading.local()
    local.value = 1
    work: queue.Queue[int] = queue.Queue()
    work.put(1)

    def run() -> tuple[Any, ...]:
        variable.set(variable.get() + 1)
        local.value += 1
        work.put(2)
        logger.info("step")
        print(end="", file=sys.stdout)
        return (own.gauss(0, 1), text.read(1), raw.read(1), variable.get(), local.value, work.qsize())

    first, second, third = restored(run)
    assert first == second and first != third
    assert first[1:] == ("a", b"a", 2, 2, 2) and third[1:] == ("b", b"b", 3, 3, 3)


def test_weakly_held_objects_are_walked() -> None:
    class Meter:
        total = 0

    meter = Meter()
    reference, proxy = weakref.ref(meter), weakref.proxy(meter)

    def run() -> int:
        target = reference()
        assert target is not None
        target.total += 1
        proxy.total += 1
        return target.total

    assert restored(run) == (2, 2, 4)
