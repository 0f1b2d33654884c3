"""Full disks and limits of size: the program goes on undisturbed, and the verdict says what is missing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.commands import check, program, run

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


def test_disk_fills_up(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "other").write_bytes(bytes(60_000))
    finished = check(tmp_path, "--output", small_disk / "out", "--", *program("finish", "0", str(STEPS)))

    assert finished.stdout.startswith(FINISHED)
    assert finished.trouble == ["disk-full"]
    assert finished.report["runs"][0]["exit_status"] == 0
    assert run(tmp_path, "show", small_disk / "out" / "run-1").status == 0
    assert (small_disk / "other").read_bytes() == bytes(60_000)


def test_disk_is_full_from_the_start(small_disk: Path, tmp_path: Path) -> None:
    with (small_disk / "other").open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            if (small_disk / "other").stat().st_size > 880_000:
                break
    finished = check(tmp_path, "--output", small_disk / "out", "--", *program("finish", "0", str(STEPS)))

    assert finished.trouble in (["disk-full"], ["output-unwritable"])


def test_limit_for_files(tmp_path: Path) -> None:
    command = program("finish", "0", str(STEPS))
    finished = check(tmp_path, "--output", "out", "--", *command, within="ulimit -f 120")

    assert finished.stdout.startswith(FINISHED)
    assert finished.trouble == ["disk-full"]
    assert [run["exit_status"] for run in finished.report["runs"]] == [0, 0]
    assert [run["stopped_by"] for run in finished.report["runs"]] == ["disk-full"] * 2


def test_max_disk(tmp_path: Path) -> None:
    finished = check(tmp_path, "--max-disk", "300k", "--output", "out", "--", *program("finish", "0", str(STEPS)))

    assert finished.stdout.startswith(FINISHED)
    assert finished.trouble == ["max-disk"]
    assert "--max-disk" in finished.text
    for number in (1, 2):
        trace = tmp_path / "out" / f"run-{number}"
        assert sum(file.stat().st_size for file in trace.rglob("*") if file.is_file()) <= 300_000
    shown = run(tmp_path, "show", "out/run-1")
    assert "complete no: the limit of --max-disk was reached" in shown.text
