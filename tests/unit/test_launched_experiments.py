"""Experiments within a budget of time: one that cannot come to its end is not announced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from determinism.diagnose.experiments import BudgetSpent, Intervention
from determinism.factors.catalog import Action
from determinism.launch.check import LaunchedExperiments
from determinism.run_spec import FixedSource

SEED = Intervention(factors=frozenset({("torch-seed", Action.FIXED)}))


class _Output:
    def log(self, name: str) -> Path:
        return Path(name)

    def discard(self, name: str) -> None:
        pass


def announced(monkeypatch: pytest.MonkeyPatch, budget: float) -> list[str]:
    """What is announced of an experiment with runs that take 4 seconds each."""
    titles: list[str] = []

    def announce(title: str, log: Path | None, **more: Any) -> None:
        titles.append(title)

    def run(*arguments: Any) -> NoReturn:
        raise BudgetSpent

    monkeypatch.setattr(LaunchedExperiments, "_run", run)
    runner = LaunchedExperiments(
        cast(Any, None), cast(Any, _Output()), cast(Any, None), announce,
        budget=budget, run_seconds=4.0, exit_statuses=frozenset({0}),
    )  # fmt: skip
    with runner, pytest.raises(BudgetSpent):
        runner.compare(SEED, runs=2)
    return titles


def test_an_experiment_of_which_only_one_run_fits_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert announced(monkeypatch, budget=9.9) == []
    title = "experiment 1: torch-seed fixed"
    end = f"{title}: broken off, as the time for further runs has run out"
    assert announced(monkeypatch, budget=10.1) == [title, end]


def clocks(*lines: int) -> Iterator[FixedSource]:
    return (FixedSource("/home/ada/train.py", line, "clock") for line in lines)


def test_of_many_places_two_are_named_and_the_rest_counted() -> None:
    few = Intervention(sources=frozenset(clocks(1, 2, 3)))
    assert few.summary == "clock at train.py:1 and clock at train.py:2 and clock at train.py:3 fixed"
    many = Intervention(sources=frozenset(clocks(1, 2, 3, 4)))
    assert many.summary == "clock at train.py:1 and clock at train.py:2 and 2 more fixed"
    shifted = many.also(Intervention(sources=frozenset({FixedSource("/home/ada/train.py", 4, "shifted clock")})))
    assert shifted.summary == "shifted clock at train.py:4 and clock at train.py:1 and 3 more fixed"
