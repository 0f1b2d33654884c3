"""Sources in pool workers, which take tasks when they are free: only the notes of all of them can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from determinism.diagnose.sources import Source, differing_sources
from determinism.run_spec import FIRST_NOTED

Noted = Mapping[str, Sequence[str | None]]
"""Values by process key."""


def write_run(folder: Path, processes: Noted, source: str, thread: str) -> Path:
    folder.mkdir()
    for key, values in processes.items():
        site = {"file": "train.py", "line": 4, "column": 1, "end_line": 4, "end_column": 9, "function": "work"}
        place = {"source": source, **site, "code": "work()", "thread": thread}
        lines = [
            {**place, "occurrence": at, "number": at, "digest": value, "shown": value, "records": 0, "recorded_as": key}
            for at, value in enumerate(values)
            if at < FIRST_NOTED or at & (at - 1) == 0
        ]
        text = "".join(json.dumps(line) + "\n" for line in [*lines, {**place, "count": len(values)}])
        (folder / f"{key}.jsonl").write_text(text, encoding="utf-8")
    return folder


def compare(
    tmp_path: Path, first: Noted, second: Noted, source: str = "seed-value", thread: str = "MainThread"
) -> list[Source]:
    one, other = (write_run(tmp_path / name, run, source, thread) for name, run in (("1", first), ("2", second)))
    return differing_sources(one, other)


KINDS = ("ForkPoolWorker-", "SpawnPoolWorker-", "SpawnProcess-", "ForkServerProcess-", "LokyProcess-", "Process-", "")


@pytest.mark.parametrize("kind", KINDS)
def test_which_worker_gets_which_task_is_not_a_difference_in_seeds(tmp_path: Path, kind: str) -> None:
    first = {f"main.{kind}1": ["0", "1", "4", "5"], f"main.{kind}2": ["2", "3"]}
    assert not compare(tmp_path, first, {f"main.{kind}1": ["2", "3"], f"main.{kind}2": ["0", "1", "4", "5"]})


def test_a_worker_that_gets_no_task(tmp_path: Path) -> None:
    first = {"main.SpawnPoolWorker-1": ["0", "1"], "main.SpawnPoolWorker-2": ["2"]}
    assert not compare(tmp_path, first, {"main.SpawnPoolWorker-1": ["2", "0", "1"]})


def test_workers_of_workers(tmp_path: Path) -> None:
    first = {"main.ForkProcess-1.1": ["0"], "main.ForkProcess-2.1": ["1"]}
    assert not compare(tmp_path, first, {"main.ForkProcess-1.1": ["1"], "main.ForkProcess-2.1": ["0"]})


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_that_differ_in_a_pool_are_found(tmp_path: Path, kind: str) -> None:
    first = {f"main.{kind}1": ["0", "1"], f"main.{kind}2": ["2", "mine"]}
    (found,) = compare(tmp_path, first, {f"main.{kind}1": ["2", "yours"], f"main.{kind}2": ["0", "1"]})
    assert (found.differs, found.process, found.occurrence, found.apart) == (True, f"main.{kind}2", 1, 2)
    assert found.shown == ("mine", "1")


def test_a_value_that_differs_in_a_worker_that_only_one_run_has(tmp_path: Path) -> None:
    first = {"main.ForkPoolWorker-1": ["0", "1"], "main.ForkPoolWorker-2": ["mine"]}
    (found,) = compare(tmp_path, first, {"main.ForkPoolWorker-1": ["yours", "1", "0"]})
    assert (found.differs, found.process) == (True, "main.ForkPoolWorker-1")


@pytest.mark.parametrize("names", [("main.rank-0", "main.rank-1"), ("main", "main-2"), ("main.fork-1", "main.fork-2")])
def test_work_that_is_not_shared_is_compared_process_by_process(tmp_path: Path, names: tuple[str, str]) -> None:
    one, other = names
    (found,) = compare(tmp_path, {one: ["0"], other: ["1"]}, {one: ["1"], other: ["0"]})
    assert (found.differs, found.process, found.shown) == (True, one, ("0", "1"))


def test_unknown_values_remain_unknown(tmp_path: Path) -> None:
    first: Noted = {"main.ForkPoolWorker-1": ["0", None], "main.ForkPoolWorker-2": ["1"]}
    (found,) = compare(tmp_path, first, {"main.ForkPoolWorker-1": ["1"], "main.ForkPoolWorker-2": ["0", None]})
    assert found.differs is None


def test_which_worker_takes_which_item_from_a_queue_is_a_difference(tmp_path: Path) -> None:
    first = {"main.ForkProcess-1": ["0", "1"], "main.ForkProcess-2": ["2", "3"]}
    second = {"main.ForkProcess-1": ["0", "2"], "main.ForkProcess-2": ["1", "3"]}
    (found,) = compare(tmp_path, first, second, "queue-order")
    assert (found.differs, found.occurrence) == (True, 1)


def split(values: Sequence[str], parts: Sequence[int]) -> dict[str, list[str]]:
    """Tasks of a pool with two workers; `parts`, repeated, gives the worker of each task."""
    taken: dict[str, list[str]] = {"main.ForkPoolWorker-1": [], "main.ForkPoolWorker-2": []}
    for at, value in enumerate(values):
        taken[f"main.ForkPoolWorker-{parts[at % len(parts)]}"].append(value)
    return taken


MANY = [str(number) for number in range(10 * FIRST_NOTED)]


def test_many_tasks_that_are_split_differently_are_not_a_difference(tmp_path: Path) -> None:
    assert not compare(tmp_path, split(MANY, (1, 2)), split(MANY, (1, 1, 2, 2, 2)))


def test_differing_seeds_among_many_tasks_are_found(tmp_path: Path) -> None:
    first, second = ([f"{run} {value}" for value in MANY] for run in "ab")
    (found,) = compare(tmp_path, split(first, (1, 2)), split(second, (1, 1, 2, 2, 2)))
    assert (found.differs, found.occurrence) == (True, 0)


def test_threads_may_take_shared_work_in_any_order_but_a_value_in_only_one_run_differs(tmp_path: Path) -> None:
    for name, second, expected in (("order", ["1", "0"], []), ("value", ["yours", "0"], [(True, 1, ("mine", "0"))])):
        first = ["0", "mine" if name == "value" else "1"]
        (tmp_path / name).mkdir()
        found = compare(tmp_path / name, {"main": first}, {"main": second}, thread="ThreadPoolExecutor-0_0")
        assert [(one.differs, one.occurrence, one.shown) for one in found] == expected
