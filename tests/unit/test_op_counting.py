"""Results are counted in the same way for all frameworks: the number of different results, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from determinism.audit import launch
from determinism.audit.harness import Arrays, count_results, with_device
from determinism.audit.launch import OpAuditRequest, Way, ways_of
from determinism.errors import UsageError
from determinism.knowledge.entries import Measurement

ABOUT = Measurement("an op", "a case", "forward", "float32", 2, False, 0, 0)


class Scripted:
    """A case that returns the results in a script, over and over."""

    def __init__(self, forward: str, backward: str | None = None) -> None:
        self._forward = itertools.cycle(forward)
        self._backward = None if backward is None else itertools.cycle(backward)

    def forward(self) -> bytes:
        return next(self._forward).encode()

    def backward(self) -> bytes | None:
        return None if self._backward is None else next(self._backward).encode()


class Refusing(Scripted):
    def __init__(self, forward: Callable[[], bytes], backward: Callable[[], bytes]) -> None:
        self.forward, self.backward = forward, backward  # type: ignore[method-assign]


def counted(run: Scripted, runs: int = 6, seconds: float = 60.0) -> dict[str, Measurement]:
    found = count_results(run, ABOUT, runs=runs, seconds=seconds, errors=(RuntimeError,))
    return {one.direction: one for one in found}


def numbers(found: dict[str, Measurement]) -> dict[str, tuple[int, int]]:
    return {name: (one.runs, one.distinct) for name, one in found.items()}


def test_different_results_are_counted() -> None:
    assert numbers(counted(Scripted("a", "x"))) == {"forward": (6, 1), "backward": (6, 1)}
    assert numbers(counted(Scripted("abc"))) == {"forward": (6, 3)}
    assert numbers(counted(Scripted("a", "xy"))) == {"forward": (6, 1), "backward": (6, 2)}


def test_backward_results_are_compared_only_if_the_forward_was_equal() -> None:
    assert numbers(counted(Scripted("ab", "xy"))) == {"forward": (6, 2), "backward": (6, 1)}


def test_an_op_that_raises_is_stored_with_the_first_line_of_its_error() -> None:
    def refuse() -> bytes:
        raise RuntimeError("not here\nat all")

    assert counted(Refusing(refuse, refuse))["forward"].raised == "not here"
    found = counted(Refusing(lambda: b"a", refuse))
    assert (found["forward"].raised, found["backward"].raised) == (None, "not here")
    assert found["backward"].runs == 0


def test_an_error_in_a_case_is_not_mistaken_for_a_refusal() -> None:
    def mistake() -> bytes:
        raise TypeError("mistake")

    with pytest.raises(TypeError, match="mistake"):
        counted(Refusing(mistake, mistake))


def test_time_counts_after_the_first_run_and_three_runs_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, now = itertools.count(), [0.0]
    monkeypatch.setattr("determinism.audit.harness.time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow_at_first() -> bytes:
        now[0] += 0 if next(calls) else 1.1
        return b"a"

    assert counted(Refusing(slow_at_first, lambda: b"x"), runs=9, seconds=1.0)["forward"].runs == 9
    assert counted(Scripted("a"), runs=9, seconds=0.0)["forward"].runs == 3


def test_equal_seeds_make_equal_arrays() -> None:
    def made(seed: int) -> list[Any]:
        arrays = Arrays(seed)
        return [arrays.normal(5), arrays.whole(3, 5), arrays.unit(5), arrays.near_one(5), arrays.boxes(2)]

    assert all(map(np.array_equal, made(1), made(1)))
    assert not any(map(np.array_equal, made(1), made(2)))


def test_one_thread_and_deterministic_mode_are_tried_if_available() -> None:
    both = {Way(threads, mode) for threads in (None, 1) for mode in (False, True)}

    assert set(ways_of(OpAuditRequest("tensorflow", "cpu"))) == both
    assert set(ways_of(OpAuditRequest("jax", "cpu"))) == {Way(None, False), Way(1, False)}
    assert set(ways_of(OpAuditRequest("jax", "cuda"))) == {Way(None, False), Way(None, True)}


def test_patched_ops_are_measured_in_deterministic_mode_on_request() -> None:
    asked = OpAuditRequest("torch", "cuda", patched=True)
    assert ways_of(asked) == (Way(None, False), Way(None, True), Way(None, True, patched=True))
    with pytest.raises(UsageError, match="torch only, not for jax"):
        launch.audit(OpAuditRequest("jax", patched=True))


def test_a_missing_framework_is_reported_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="jax is not installed for .*python"):
        launch.audit(OpAuditRequest("jax"))


def test_a_device_is_present_if_the_framework_sees_one() -> None:
    about = {"version": "1", "hardware": {"processor": "Some CPU"}}

    assert with_device(about, "cpu", ["Some GPU"]) == {**about, "has_device": True}
    assert with_device(about, "cuda", [])["has_device"] is False
    assert with_device(about, "tpu", ["Some GPU"])["has_device"] is False
    found = with_device(about, "cuda", ["Some GPU", "Another"])
    assert (found["has_device"], found["hardware"]["accelerator"]) == (True, "Some GPU")
