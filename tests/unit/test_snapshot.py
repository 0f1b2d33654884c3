"""A snapshot restores, in place, everything that a call can reach."""

from __future__ import annotations

import dataclasses
import functools
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from determinism.errors import StateError
from determinism.session.snapshot import Snapshot

step = 0

history: list[float] = []

weights = np.arange(6, dtype=np.float64).reshape(2, 3)

handle: Any = None


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
    """A frozen class that holds a mutable list."""

    items: list[int]


def restored(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Results of two calls with a restore in between, and of a third call without one."""
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
        return [*history, momentum, cache["calls"], *weights.ravel(), len(cache)]

    batches = [[1.0], [2.0]]
    inner = batches[0]
    first, second, third = restored(train, 0.1, batches)
    assert first == second
    assert first != third
    assert (step, history, momentum, cache) == (0, [], 1.0, {"calls": 0})
    assert batches == [[1.0], [2.0]] and batches[0] is inner
    assert weights.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_without_a_restore_changes_remain() -> None:
    values = [1]
    Snapshot.take(values.append, (2,), {})
    values.append(2)
    assert values == [1, 2]


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


def test_reachable_functions_are_walked() -> None:
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


def test_a_users_module_is_walked_if_its_names_are_used(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_cached_function_starts_empty_again() -> None:
    @functools.lru_cache
    def draw(_: int) -> float:
        return random.random()

    def run() -> tuple[float, float]:
        return draw(1), draw(1)

    first, second, third = restored(run)
    assert first == second == third


@pytest.mark.parametrize("maxsize", [None, 128])
def test_results_that_a_function_had_cached_before_are_kept(maxsize: int | None) -> None:
    @functools.lru_cache(maxsize)
    def kept(_: int) -> list[float]:
        return [random.random()]

    earlier = kept(1)
    values = list(earlier)

    def run() -> list[float]:
        kept(1).append(0.0)
        return list(kept(1))

    assert restored(run)[:2] == ([*values, 0.0],) * 2
    assert kept(1) is earlier


def test_results_that_a_call_adds_to_an_unlimited_cache_are_removed() -> None:
    @functools.cache
    def draw(_: int) -> float:
        return random.random()

    earlier = draw(1)
    first, second, third = restored(lambda: (draw(1), draw(2), draw(2), draw(1)))
    assert first == second == third
    assert first[0] == first[3] == earlier


def test_a_limited_cache_is_emptied_only_if_its_earlier_results_were_not_used() -> None:
    @functools.lru_cache
    def draw(_: int) -> float:
        return random.random()

    draw(1)
    first, second, third = restored(lambda: draw(2))
    assert first == second == third
    draw(1)
    with pytest.raises(StateError, match=r"closure\['draw'\] cannot be restored.*new results.*cache_clear"):
        restored(lambda: (draw(2), draw(1), draw(3)))


def test_a_cached_result_that_cannot_be_copied_is_named() -> None:
    @functools.cache
    def batches(_: str) -> Any:
        return iter([1])

    batches("train")
    with pytest.raises(StateError, match=r"closure\['batches'\]\(\)\['train'\] is of type list_iterator"):
        Snapshot.take(lambda: batches, (), {})


def test_other_named_objects_are_restored_and_named_in_refusals() -> None:
    fixture = {"numbers": [1]}
    snapshot = Snapshot.take(lambda: None, (), {}, {"fixture": fixture})
    fixture["numbers"].append(2)
    snapshot.restore()
    assert fixture == {"numbers": [1]}
    fixture["numbers"] = iter([1])  # type: ignore[assignment]
    with pytest.raises(StateError, match=r"^fixture\['numbers'\] is of type list_iterator") as caught:
        Snapshot.take(lambda: None, (), {}, {"fixture": fixture})
    assert caught.value.finding == "fixture['numbers'] is of type list_iterator, whose position cannot be copied"


def test_objects_of_pytest_are_left_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[str, object]] = request.node.user_properties
    snapshot = Snapshot.take(lambda: request.config, (request, monkeypatch), {})
    noted.append(("made", "in between"))
    snapshot.restore()
    assert ("made", "in between") in noted


def test_names_that_a_cell_binds_and_deletes_are_restored() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "kept": 1, "removed": 2}
    code = compile("kept = 3\nnew = 4\ndel removed", "<ipython-input-1>", "exec")
    function = types.FunctionType(code, namespace)
    snapshot = Snapshot.take(function, (), {})
    function()
    assert (namespace["kept"], namespace["new"]) == (3, 4)
    snapshot.restore()
    assert {name: namespace[name] for name in ("kept", "removed")} == {"kept": 1, "removed": 2}
    assert "new" not in namespace


def test_the_namespace_of_a_module_is_left_alone_like_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespace holds an object that cannot be copied, for which any other dictionary is refused."""
    module = types.ModuleType("settings_of_a_program")
    module.numbers = iter([1, 2])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    Snapshot.take(lambda names: None, (vars(module),), {})
    with pytest.raises(StateError):
        Snapshot.take(lambda names: None, (dict(vars(module)),), {})
