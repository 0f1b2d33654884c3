"""A snapshot puts back, in place, everything that a call can reach; what it cannot copy is an error with its path."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import functools
import io
import itertools
import logging
import multiprocessing
import queue
import random
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from determinism.errors import StateError
from determinism.session.snapshot import Snapshot

step = 0
history: list[float] = []
weights = np.arange(6, dtype=np.float64).reshape(2, 3)
handle: Any = None
ids = itertools.count(5)
turns = itertools.cycle([1, 2, 3])
logger = logging.getLogger("training")


class Meter:
    """A user's class with state in the class, in attributes and in slots."""

    instances = 0
    seen: list[int] = []

    def __init__(self) -> None:
        self.total = 0.0

    def add(self, value: float) -> None:
        global handle
        Meter.instances += 1
        Meter.seen.append(1)
        self.total += value
        handle = self


class Slotted:
    """A class without `__dict__`."""

    __slots__ = ("__secret", "late", "value")

    def __init__(self) -> None:
        self.value = [1]
        self.__secret = 1

    def bump(self) -> int:
        self.value.append(2)
        self.__secret += 1
        self.late = True
        return self.__secret


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """Frozen, but it holds something that is not."""

    items: list[int]


def restored(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Results of two calls with a restore between, and of a third without."""
    snapshot = Snapshot.take(function, args, kwargs)
    first = function(*args, **kwargs)
    snapshot.restore()
    second = function(*args, **kwargs)
    third = function(*args, **kwargs)
    snapshot.restore()
    return first, second, third


def test_a_training_loop_repeats() -> None:
    momentum = 1.0
    cache: dict[str, Any] = {"calls": 0}

    def train(rate: float, batches: list[list[float]]) -> list[float]:
        global step
        nonlocal momentum
        for batch in batches:
            step += 1
            momentum *= 0.9
            cache["calls"] += 1
            cache[f"step{step}"] = step
            batch.append(random.gauss(0, 1) + np.random.randn())
            weights[...] += rate * sum(batch) * momentum + step
            history.append(float(weights.sum()))
        return [*history, momentum, cache["calls"], *weights.ravel(), *cache.keys().__iter__()]  # type: ignore[list-item]

    batches = [[1.0], [2.0]]
    inner = batches[0]
    first, second, third = restored(train, 0.1, batches)
    assert first == second
    assert first != third
    assert (step, history, momentum, cache) == (0, [], 1.0, {"calls": 0})
    assert batches == [[1.0], [2.0]] and batches[0] is inner
    assert weights.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_without_restore_nothing_goes_back() -> None:
    values = [1]
    Snapshot.take(values.append, (2,), {})
    values.append(2)
    assert values == [1, 2]


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


def test_a_set_is_iterated_equally_each_time() -> None:
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


def test_objects_classes_and_slots() -> None:
    meter, slotted, frozen = Meter(), Slotted(), Frozen([1])

    def run(meter: Meter, slotted: Slotted, frozen: Frozen) -> tuple[Any, ...]:
        meter.add(1.5)
        meter.extra = True  # type: ignore[attr-defined]
        frozen.items.append(2)
        return meter.total, Meter.instances, len(Meter.seen), slotted.bump(), list(frozen.items), len(slotted.value)

    first, second, third = restored(run, meter, slotted, frozen)
    assert first == second and first != third
    assert vars(meter) == {"total": 0.0} and Meter.instances == 0 and Meter.seen == []
    assert not hasattr(slotted, "late") and slotted.value == [1]
    assert handle is None, "a global that a method of an argument binds is put back"


def test_attributes_of_functions_and_defaults() -> None:
    def call(into: list[int] = []) -> tuple[int, int]:  # noqa: B006
        into.append(1)
        call.count = getattr(call, "count", 0) + 1  # type: ignore[attr-defined]
        return len(into), call.count  # type: ignore[attr-defined]

    first, second, third = restored(call)
    assert first == second == (1, 1) and third == (2, 2)
    assert not hasattr(call, "count")


def test_functions_that_are_reached_are_walked() -> None:
    total = {"value": 0}

    def add(amount: int) -> int:
        total["value"] += amount
        return total["value"]

    class Callback:
        def __call__(self) -> int:
            return add(1)

    for function in (functools.partial(add, 1), lambda: add(2), Callback(), functools.partial(Callback().__call__)):
        first, second, third = restored(function)
        assert first == second and first != third


def test_a_users_module_is_walked_where_its_names_are_used(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("my_program_state.py").write_text("count = 0\ndef bump():\n    global count\n    count += 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def run() -> int:
        import my_program_state  # type: ignore[import-not-found]

        my_program_state.bump()
        return int(my_program_state.count)

    import my_program_state

    first, second, third = restored(run)
    assert (first, second, third) == (1, 1, 2)
    assert my_program_state.count == 0
    sys.modules.pop("my_program_state")


def test_a_global_that_did_not_exist_is_removed() -> None:
    def run() -> bool:
        global made_by_the_call
        known = "made_by_the_call" in globals()
        made_by_the_call = 1  # type: ignore[name-defined]
        return known

    assert restored(run) == (False, False, True)
    assert "made_by_the_call" not in globals()


def test_an_empty_cell_is_emptied_again() -> None:
    def outer() -> Callable[[], bool]:
        def run() -> bool:
            nonlocal value
            try:
                known = bool(value)
            except NameError:
                known = False
            value = 1
            return known

        if len(history) > 10**6:
            value = 0
        return run

    assert restored(outer()) == (False, False, True)


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


def test_a_resized_array_is_put_back() -> None:
    values = np.arange(4.0)

    def run(values: Any) -> None:
        values.resize((100,), refcheck=False)
        values[:] = 7

    snapshot = Snapshot.take(run, (values,), {})
    run(values)
    snapshot.restore()
    assert values.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_generators_counters_buffers_and_context() -> None:
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
        pair = next(ids), next(turns)
        return (*pair, own.gauss(0, 1), text.read(1), raw.read(1), variable.get(), local.value, work.qsize())

    first, second, third = restored(run)
    assert first == second and first[:2] == (5, 1) and third[:2] == (6, 2)
    assert first[3:] == ("a", b"a", 2, 2, 2) and third[3:] == ("b", b"b", 3, 3, 3)
    assert next(ids) == 5 and next(turns) == 1


def test_a_cached_function_starts_empty_again() -> None:
    @functools.lru_cache
    def draw(_: int) -> float:
        return random.random()

    def run() -> tuple[float, float]:
        return draw(1), draw(1)

    first, second, third = restored(run)
    assert first == second == third
    draw(1)
    with pytest.raises(StateError, match=r"closure\['draw'\].*cached results"):
        Snapshot.take(run, (), {})


def test_weakly_held_objects_are_walked() -> None:
    meter = Meter()
    reference, proxy = weakref.ref(meter), weakref.proxy(meter)

    def run() -> float:
        target = reference()
        assert target is not None
        target.total += 1
        proxy.total += 1
        return target.total

    assert restored(run) == (2, 2, 4)


def numbers() -> Iterator[int]:
    """Yield for ever."""
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
        lambda: itertools.cycle(numbers()),
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
def test_what_cannot_be_copied_is_named(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Taking a snapshot fails, and says where, what and what to do."""
    with pytest.raises(StateError, match=f"^{path} is of type .*{kind}") as caught:
        Snapshot.take(function, args, kwargs)
    assert caught.value.identifier == "state-uncopyable"
    assert "determinism check -- python" in caught.value.message


def test_a_counter_in_a_tuple_cannot_be_replaced() -> None:
    expect_refusal(r"args\[0\]\[0\]", "count", repr, (itertools.count(),))


def test_what_cannot_be_undone_is_an_error() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    def run() -> None:
        variable.set(1)

    snapshot = Snapshot.take(run, (), {})
    run()
    with pytest.raises(StateError, match=r"closure\['variable'\].* cannot be put back") as caught:
        snapshot.restore()
    assert caught.value.identifier == "state-unrestored"


def test_torch_is_not_imported() -> None:
    if "torch" in sys.modules:
        pytest.skip("an earlier test imported it")
    Snapshot.take(numbers, (), {}).restore()
    assert "torch" not in sys.modules
