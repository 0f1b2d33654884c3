"""Experiments within a time budget: an experiment that cannot finish is not announced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from determinism.comparison.divergence import Cause, Diagnosis, Fix, PrintedDifference, Status
from determinism.comparison.result import FileChange, Leftover
from determinism.diagnose.experiments import BudgetSpent, Intervention
from determinism.errors import LaunchError
from determinism.factors.catalog import Action
from determinism.launch.check import LaunchedExperiments
from determinism.launch.further_runs import FirstStart
from determinism.launch.io import printed_difference
from determinism.launch.runs import CheckRequest, FreshCopy, RunSeries
from determinism.run_spec import FixedSource

SEED = Intervention(factors=frozenset({("torch-seed", Action.FIXED)}))


class _Output:
    def log(self, name: str) -> Path:
        return Path(name)

    def discard(self, name: str) -> None:
        pass


def announced(monkeypatch: pytest.MonkeyPatch, budget: float) -> list[str]:
    """The announcements of an experiment whose runs take 4 seconds each."""
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


def test_an_experiment_with_time_for_only_one_run_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert announced(monkeypatch, budget=9.9) == []
    title = "experiment 1: torch-seed fixed"
    end = f"{title}: broken off, as the time for further runs has run out"
    assert announced(monkeypatch, budget=10.1) == [title, end]


def clocks(*lines: int) -> Iterator[FixedSource]:
    return (FixedSource("/home/ada/train.py", line, "clock") for line in lines)


def test_two_of_many_places_are_named_and_the_rest_counted() -> None:
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
        ("SPS: 164", "SPS: 150", False),
        ("runs/20261128_043311", "runs/20261128_043312", False),
        ("started at 1764304391.2", "started at 1764304394.9", False),
        ("serving at localhost:43211", "serving at localhost:40123", False),
        ("lr 0.001 timesteps 100", "lr 0.002 timesteps 100", True),
        ("score 3.20264390110612", "score 3.20264390110613", True),
        ("score 0.1764304391", "score 0.1764304392", True),
    ],
)
def test_printed_numbers_that_differ_are_shown_unless_they_depend_on_the_machine(
    first: str, second: str, shown: bool, tmp_path: Path
) -> None:
    logs = [tmp_path / f"run-{number}.log" for number in (1, 2, 3, 4)]
    for log, text in zip(logs[1:], (first, first, second), strict=True):
        log.write_text(f"same 1\n{text}\n", encoding="utf-8")
    found = printed_difference(logs)
    assert found == (PrintedDifference((2, 4), first, second) if shown else None)


def test_missing_output_shows_no_difference(tmp_path: Path) -> None:
    (tmp_path / "run-2.log").write_text("1\n")
    assert printed_difference([tmp_path / "run-1.log", tmp_path / "run-2.log"]) is None
    assert printed_difference([tmp_path / "run-1.log"]) is None


def read_by_run_2(*files: Path, change: FileChange = FileChange.CREATED, is_copied: bool = True) -> RunSeries:
    """The runs of a check in which run 2 read files that run 1 had changed."""
    series = RunSeries(CheckRequest(["python"]), cast(Any, None), cast(Any, None), None, first_number=1)
    series.leftovers += [Leftover(str(file), 1, 2, is_copied, change=change) for file in files]
    return series


def copied(tmp_path: Path, start: FirstStart | None, intervention: Intervention) -> list[str] | None:
    """The files in the copy that an experiment runs in; None if it runs in the folder itself."""
    output = cast(Any, _Output())
    output.path = tmp_path / ".determinism"
    with LaunchedExperiments(
        CheckRequest(["python"]), output, cast(Any, None), cast(Any, None),
        budget=9.0, run_seconds=1.0, exit_statuses=frozenset({0}), start=start,
    ) as runner:  # fmt: skip
        copy = runner._copy_for(intervention)
        if copy is None:
            return None
        copy.renew()
        return sorted(path.name for path in copy.folder.iterdir())


def test_experiments_start_like_run_1_if_run_2_read_its_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data.csv", "last.pt", "train.py"):
        (tmp_path / name).write_text("x")
    start = FirstStart.of(read_by_run_2(tmp_path / "last.pt"))
    assert start is not None
    for intervention in (SEED, Intervention(fresh_copy=True)):
        assert copied(tmp_path, start, intervention) == ["data.csv", "train.py"]
    assert start.is_reached
    assert copied(tmp_path, None, SEED) is None
    assert FirstStart.of(read_by_run_2()) is None


@pytest.mark.parametrize(
    "left", [{"change": FileChange.OVERWRITTEN}, {"change": FileChange.UNSEEN}, {"is_copied": False}]
)
def test_a_start_that_a_copy_cannot_restore_is_not_claimed(
    left: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "last.pt").write_text("x")
    start = FirstStart.of(read_by_run_2(tmp_path / "last.pt", **left))
    assert start is not None
    assert not start.is_reached
    assert copied(tmp_path, start, SEED) is None
    assert copied(tmp_path, start, Intervention(fresh_copy=True)) == ["last.pt"]


def test_a_folder_that_is_too_large_to_copy_is_used_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "last.pt").write_text("x")

    def check_size(copy: FreshCopy) -> NoReturn:
        raise LaunchError("copy-too-large", "It holds too much.")

    monkeypatch.setattr(FreshCopy, "check_size", check_size)
    start = FirstStart.of(read_by_run_2(tmp_path / "last.pt"))
    assert start is not None
    assert copied(tmp_path, start, SEED) is None
    assert not start.is_reached
    with pytest.raises(LaunchError):
        copied(tmp_path, start, Intervention(fresh_copy=True))


def test_a_verified_fix_says_how_its_runs_started() -> None:
    fixes = [
        Fix("seed-missing-torch", "Seed it", verified=True, runs=3),
        Fix("seed-missing-numpy", "Seed that"),
        Fix("leftover-file", "Remove it", verified=True, runs=3),
    ]
    start = FirstStart(frozenset({"last.pt"}), (), is_reached=True)
    titles = [fix.title for fix in start.noted(Diagnosis(fixes=tuple(fixes))).fixes]
    assert titles == ["Seed it; each run started without what earlier runs had left", "Seed that", "Remove it"]
    start.is_reached = False
    cause = Cause("leftover-file", "A run reads a file", Status.CONFIRMED, (), (), ())
    noted = start.noted(Diagnosis(fixes=tuple(fixes), causes=(cause,)))
    assert [fix.verified for fix in noted.fixes] == [True, False, False]
    assert noted.causes[0].status is Status.LIKELY
    start.give_up()
    assert start.noted(Diagnosis(causes=(cause,))).causes[0].status is Status.CONFIRMED
    assert (
        start.noted(Diagnosis(fixes=tuple(fixes[:1]))).fixes[0].title
        == "Seed it; each run started from other files than run 1"
    )
