"""Workers of a TensorFlow cluster are ranks of the run, and a difference is traced to the worker in which it began."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PROGRAMS, check_command, line
from tests.e2e.running import ENVIRONMENT

PROGRAM = "tensorflow/two_workers"

pytestmark = pytest.mark.thorough("tensorflow")


def checked(folder: Path, how: str) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAMS / f"{PROGRAM}.py"), how]
    return check_command(folder, command, options=("--budget", "1"), environment=ENVIRONMENT).report


def test_two_workers_that_compute_the_same_are_the_same(tmp_path: Path) -> None:
    report = checked(tmp_path, "seeded")

    assert (report["verdict"], report["recorded"]["blind_spots"]) == ("same", [])
    assert report["recorded"]["processes"] == 2


def test_the_difference_begins_in_the_worker_that_gets_different_data(tmp_path: Path) -> None:
    report = checked(tmp_path, "varying")

    first = report["first_divergence"]
    assert (first["process"], first["kind"], first["step"]) == ("main.rank-1", "data", 0)
    assert first["site"]["line"] == line(PROGRAM, "SITE loss")
    # The other worker received the difference through the collective.
    (other,) = report["divergences"]
    assert (other["process"], other["kind"], other["op"]) == ("main.rank-0", "data", "tf::CollectiveReduceV2")
