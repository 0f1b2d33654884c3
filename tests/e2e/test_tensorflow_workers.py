"""Workers of TensorFlow's clusters are ranks of the run, and what one of them got is followed to the one in which it began to differ."""

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


def test_a_worker_that_gets_other_data_is_where_the_difference_began(tmp_path: Path) -> None:
    report = checked(tmp_path, "varying")

    first = report["first_divergence"]
    assert (first["process"], first["kind"], first["step"]) == ("main.rank-1", "data", 0)
    assert first["site"]["line"] == line(PROGRAM, "SITE loss")
    # The other worker got it through the collective.
    (other,) = report["divergences"]
    assert (other["process"], other["kind"], other["op"]) == ("main.rank-0", "data", "tf::CollectiveReduceV2")
