"""Experiments within a budget of time: one that cannot come to its end is not announced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from determinism.comparison.run_facts import PrintedDifference
from determinism.diagnose.experiments import BudgetSpent, Intervention
from determinism.factors.catalog import Action
from determinism.launch.check import LaunchedExperiments
from determinism.launch.io import printed_difference
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


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ("accuracy 0.8725 [0.84, 0.90]", "accuracy 0.8725 [0.83, 0.90]", True),
        ("mean error 0x1.cf9a380000000p+1", "mean error 0x1.cf9a360000000p+1", True),
        ("order [0, 2, 1]", "order [1, 0, 2]", True),
        ("score 3\nworker 1", "worker 1\nscore 3", False),
        ("epoch 1 took 3.21 s", "epoch 1 took 3.30 s", False),
        ("12%|█▏ | 3/25 [00:01<00:09,  2.4it/s]", "12%|█▏ | 3/25 [00:01<00:08,  2.5it/s]", False),
        ("2026-11-28 10:00:01 start", "2026-11-28 10:00:09 start", False),
        ("<object at 0x7f0011223344>", "<object at 0x7f0011223388>", False),
        ("loss 1.5\n\x1b[32mdone\x1b[0m", "loss 1.5\ndone", False),
        ("saved as tmpa1", "nothing was saved", False),
        ("loss 0.5 step_time 0.12", "loss 0.5 step_time 0.13", False),
        ("samples/sec: 31", "samples/sec: 33", False),
        ("runs/20261128_043311", "runs/20261128_043312", False),
        ("started at 1764304391.2", "started at 1764304394.9", False),
        ("serving at localhost:43211", "serving at localhost:40123", False),
        ("lr 0.001 timesteps 100", "lr 0.002 timesteps 100", True),
    ],
)
def test_numbers_that_only_some_runs_printed_are_shown_unless_they_are_of_the_machine(
    first: str, second: str, shown: bool, tmp_path: Path
) -> None:
    logs = [tmp_path / f"run-{number}.log" for number in (1, 2, 3, 4)]
    for log, text in zip(logs[1:], (first, first, second), strict=True):
        log.write_text(f"same 1\n{text}\n", encoding="utf-8")
    found = printed_difference(logs)
    assert found == (PrintedDifference((2, 4), first, second) if shown else None)


def test_output_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "run-2.log").write_text("1\n")
    assert printed_difference([tmp_path / "run-1.log", tmp_path / "run-2.log"]) is None
    assert printed_difference([tmp_path / "run-1.log"]) is None
