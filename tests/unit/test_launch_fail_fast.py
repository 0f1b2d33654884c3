"""A run is followed while it is running: it is decided once a whole step has shown a live difference, and not before."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from determinism.launch import further_runs
from determinism.launch.further_runs import FailFast
from determinism.trace.opening import open_trace
from determinism.trace.schema import FAIL_FAST
from tests.traces import TraceBuilder


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(further_runs, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(further_runs, "_SHARE", 0)


def step(run: TraceBuilder, weight: str = "weight", *, extra: bool = False) -> None:
    """Add a step that updates a parameter."""
    loss = run.add("op::loss", (), ("loss",))
    if extra:
        loss = run.add("op::more", (loss,), ("more",))
    run.step({"weight": run.add("op::update", (loss,), (weight,))})


@pytest.fixture
def first(tmp_path: Path) -> Path:
    run = TraceBuilder(tmp_path / "run-1")
    for _ in range(5):
        step(run)
    return run.close()


def is_decided(following: FailFast, *, within: float) -> bool:
    """Whether the run is decided within this many seconds."""
    end = time.monotonic() + within
    while following.why_stop() is None and time.monotonic() < end:
        time.sleep(0.01)
    return following.why_stop() == FAIL_FAST


@pytest.mark.parametrize("change", [{"weight": "another"}, {"extra": True}], ids=["value", "structure"])
def test_a_run_is_decided_at_the_end_of_the_step(change: dict, first: Path, tmp_path: Path) -> None:
    with FailFast(open_trace(first), tmp_path / "run-2") as following:
        assert not is_decided(following, within=0.1)
        run = TraceBuilder(tmp_path / "run-2")
        step(run)
        run.add("op::loss", (), ("loss",))
        assert not is_decided(following, within=0.5)
        run.step({"weight": run.add("op::update", (3,), ("weight",))})
        step(run, **change)
        assert not is_decided(following, within=0.3)
        run.add("op::loss", (), ("loss",))
        assert is_decided(following, within=300)
    run.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-1", "run-2"]


def test_equal_and_dead_records_decide_nothing(first: Path, tmp_path: Path) -> None:
    run = TraceBuilder(tmp_path / "run-2")
    with FailFast(open_trace(first), tmp_path / "run-2") as following:
        for _ in range(3):
            run.add("op::logged", (), (f"{time.time()}",))
            step(run)
        run.add("op::loss", (), ("loss",))
        assert not is_decided(following, within=1)
    run.close()


def test_records_without_an_order_decide_nothing(tmp_path: Path) -> None:
    threads = {"stream": "threads", "part_of": "main"}
    runs = [TraceBuilder(tmp_path / name, key="main.threads", **threads) for name in ("run-1", "run-2")]
    for run, weights in zip(runs, (["one", "other"], ["other", "one"]), strict=True):
        for weight in [*weights, "last"]:
            step(run, weight)
    with FailFast(open_trace(runs[0].close()), tmp_path / "run-2") as following:
        assert not is_decided(following, within=0.5)
    runs[1].close()


@pytest.mark.parametrize("busy", [False, True], ids=["waits", "computes"])
def test_one_long_look_does_not_delay_the_next(
    busy: bool, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look loads modules, and waits for a processor if the machine is busy."""
    looks: list[float] = []

    def look(following: FailFast, key: str) -> bool:
        looks.append(time.monotonic())
        end = looks[-1] + 0.2
        while len(looks) == 1 and time.monotonic() < end:
            time.sleep(0 if busy else 0.01)
        return len(looks) == 2

    monkeypatch.setattr(FailFast, "_process_differs", look)
    monkeypatch.setattr(further_runs, "_SHARE", 100_000)
    with FailFast(open_trace(first), tmp_path / "run-2") as following:
        assert is_decided(following, within=300)
