"""Full disks and size limits: the program continues undisturbed, and the verdict says what is missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determinism.trace.ledger import read_ledger
from determinism.trace.opening import open_trace
from tests.e2e.commands import TINY, check, program, run

STEPS = 3000
FINISHED = b"finished 3000\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 900 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a disk can be mounted by root only; the limit for files is tested in its stead")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_fills_up_does_not_disturb_the_program(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "other").write_bytes(bytes(60_000))
    finished = check(tmp_path, "--output", small_disk / "out", "--", *program("finish", "0", str(STEPS)))

    assert finished.stdout.startswith(FINISHED)
    assert finished.trouble == ["disk-full"]
    assert finished.report["runs"][0]["exit_status"] == 0
    assert run(tmp_path, "show", small_disk / "out" / "run-1").status == 0
    assert (small_disk / "other").read_bytes() == bytes(60_000)


def test_a_disk_that_is_full_from_the_start_is_reported(small_disk: Path, tmp_path: Path) -> None:
    with (small_disk / "other").open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            if (small_disk / "other").stat().st_size > 880_000:
                break
    finished = check(tmp_path, "--output", small_disk / "out", "--", *program("finish", "0", str(STEPS)))

    assert finished.trouble in (["disk-full"], ["output-unwritable"])


def test_a_file_size_limit_is_reported_as_a_full_disk(tmp_path: Path) -> None:
    command = program("finish", "0", str(STEPS))
    finished = check(tmp_path, "--output", "out", "--", *command, within="ulimit -f 120")

    assert finished.stdout.startswith(FINISHED)
    assert finished.trouble == ["disk-full"]
    assert [run["exit_status"] for run in finished.report["runs"]] == [0, 0]
    assert [run["stopped_by"] for run in finished.report["runs"]] == ["disk-full"] * 2


def test_max_disk_limits_the_trace(tmp_path: Path) -> None:
    finished = check(tmp_path, "--max-disk", "300k", "--output", "out", "--", *program("finish", "0", str(STEPS)))

    assert finished.stdout.startswith(FINISHED)
    assert finished.trouble == ["max-disk"]
    assert "--max-disk" in finished.text
    for number in (1, 2):
        trace = tmp_path / "out" / f"run-{number}"
        assert sum(file.stat().st_size for file in trace.rglob("*") if file.is_file()) <= 300_000
    shown = run(tmp_path, "show", "out/run-1")
    assert "complete no: the limit of --max-disk was reached" in shown.text


def recorded(folder: Path, name: str, how: str, at: int, status: int = 0) -> Path:
    """Record a program of 900 steps, keeping only its newest ops."""
    words = (sys.executable, str(TINY / "narrowing.py"), how, str(at), "900")
    assert run(folder, "record", "--max-disk", "400k", "-o", name, "--", *words).status == status
    return folder / name


def compared(folder: Path, first: Path, second: Path) -> tuple[int, Any]:
    """Compare two runs; return the exit status and the report."""
    finished = run(folder, "compare", "--json", "report.json", first, second)
    return finished.status, json.loads((folder / "report.json").read_text())


def test_record_keeps_the_newest_ops_and_a_ledger_of_all_steps(tmp_path: Path) -> None:
    first, second, late, early = (
        recorded(tmp_path, name, how, at)
        for name, how, at in (("a", "clean", 0), ("b", "clean", 0), ("c", "planted", 890), ("d", "planted", 207))
    )

    for trace in (first, late):
        assert sum(file.stat().st_size for file in (trace / "processes").rglob("*") if file.is_file()) <= 400_000
    shown = " ".join(run(tmp_path, "show", first).text.split())
    assert "kept the newest: ops before step" in shown and "complete no" not in shown

    status, report = compared(tmp_path, first, second)
    assert (status, report["verdict"]) == (0, "same")
    assert [spot["id"] for spot in report["recorded"]["blind_spots"]] == ["ops-removed"] * 2

    status, report = compared(tmp_path, first, late)
    assert (status, report["first_divergence"]["step"]) == (1, 890)
    assert report["first_divergence"]["site"]["file"] == str(TINY / "narrowing.py")

    status, report = compared(tmp_path, first, early)
    assert (status, report["first_divergence"]["step"], report["narrowing"]["step"]) == (1, 207, 207)
    assert "step 207" in report["headline"] and "removed to stay within --max-disk" in json.dumps(report["story"])


def test_ops_before_kill_9_are_kept(tmp_path: Path) -> None:
    killed = recorded(tmp_path, "killed", "killed", 850, 128 + signal.SIGKILL)

    (process,) = open_trace(killed).processes
    steps = [int(step) for chunk in process.chunks() for step in chunk.columns["step"]]
    assert process.num_removed > 0 and not process.truncated
    assert (steps[0], steps[-1]) == (process.first_step, 849)
    assert len(read_ledger(process.folder)) == 850
