"""Comparing over an executor gives the same report as comparing here, byte by byte; workers that die are replaced and reported."""

from __future__ import annotations

import os
import signal
import tarfile
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from determinism.comparison.executors import MOST_ATTEMPTS, PairsOverExecutor, pairs_over
from determinism.errors import DeterminismError
from determinism.report.document import document, json_text
from determinism.session.check import compare, compare_over

STORED = Path(__file__).parents[1] / "golden" / "stored"
CASES = (
    "ranks/*",
    "broken/longer",
    "broken/fail_fast",
    "damaged/cut_records",
    "damaged/lost_process",
    "children/pool_bit",
    "kinds/late_dropout",
)


def archives() -> list[Path]:
    found = [path / "traces.tar.xz" for pattern in CASES for path in sorted(STORED.glob(pattern))]
    assert len(found) > 8
    return [path for path in found if path.exists()]


def unpacked(archive: Path, folder: Path) -> list[Path]:
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    return sorted(path.parent for path in folder.rglob("manifest.json") if "parts" not in path.parts)


def report(runs: Sequence[Path], over: PairsOverExecutor | None = None) -> str:
    try:
        found = compare(*runs) if over is None else compare_over(over, *runs)
    except DeterminismError as error:
        return error.message
    return json_text(document(found))


@pytest.fixture(scope="module")
def pool() -> object:
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        yield executor


class Kept(Executor):
    """An executor that several comparisons share."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, function, /, *arguments, **keywords):  # type: ignore[no-untyped-def]
        return self._executor.submit(function, *arguments, **keywords)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


@pytest.mark.parametrize("archive", archives(), ids=lambda archive: "/".join(archive.parts[-3:-1]))
def test_the_report_is_the_same_byte_by_byte(archive: Path, pool: Executor, tmp_path: Path) -> None:
    runs = unpacked(archive, tmp_path)

    assert report(runs, PairsOverExecutor(lambda: Kept(pool), 2)) == report(runs)


def dying(times: int) -> tuple[PairsOverExecutor, list[str]]:
    """A comparison over a pool whose workers are killed this many times, and its messages."""
    said: list[str] = []
    left = [times]

    def make() -> Executor:
        executor = ProcessPoolExecutor(1, get_context("spawn"))
        if left[0]:
            left[0] -= 1
            os.kill(executor.submit(os.getpid).result(), signal.SIGKILL)
        return executor

    return PairsOverExecutor(make, 1, said.append), said


def test_a_worker_that_dies_is_replaced_and_reported(tmp_path: Path) -> None:
    runs = unpacked(STORED / "ranks" / sorted(os.listdir(STORED / "ranks"))[0] / "traces.tar.xz", tmp_path)
    over, said = dying(1)

    assert report(runs, over) == report(runs)
    assert len(said) == 1 and said[0].startswith("A comparison worker died; 2 of 2 pairs")


def test_workers_that_keep_dying_end_the_comparison(tmp_path: Path) -> None:
    runs = unpacked(STORED / "ranks" / sorted(os.listdir(STORED / "ranks"))[0] / "traces.tar.xz", tmp_path)
    over, _ = dying(MOST_ATTEMPTS)

    with pytest.raises(DeterminismError) as caught:
        compare_over(over, *runs)
    assert caught.value.identifier == "compare-worker-died"


def test_a_missing_scheduler_is_reported() -> None:
    with pytest.raises(DeterminismError) as caught, pairs_over(1, "tcp://127.0.0.1:1"):
        pass
    assert caught.value.identifier in ("dask-missing", "scheduler-unreachable")
