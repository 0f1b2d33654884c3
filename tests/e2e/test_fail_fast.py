"""`--fail-fast` ends only a later run that differs from the first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.commands import TINY, check

DRIFTING = [sys.executable, str(TINY / "drifting.py")]


@pytest.mark.parametrize("how", ["argument", "structure"])
def test_a_run_that_differs_ends_early(how: str, tmp_path: Path) -> None:
    finished = check(tmp_path, "--fail-fast", "-n", "4", "--output", "out", "--", *DRIFTING, how, "500")

    assert finished.status == 1
    first, second = finished.report["runs"]
    assert (first["stopped_by"], first["exit_status"]) == (None, 0)
    assert (second["stopped_by"], second["exit_status"]) == ("fail-fast", -15)
    assert second["seconds"] < first["seconds"]
    first_divergence = finished.report["first_divergence"]
    assert (first_divergence["kind"], first_divergence["step"]) == (how, 3)
    assert finished.report["trouble"] == []
    assert "run 2: ended by --fail-fast" in finished.text
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert kept == {"run-1", "run-1.log", "run-2", "run-2.log", "report.html", "report.json"}


@pytest.mark.parametrize("how", ["same", "dead"])
def test_a_run_that_does_not_differ_completes(how: str, tmp_path: Path) -> None:
    finished = check(tmp_path, "--fail-fast", "--", *DRIFTING, how, "200")

    assert finished.status == 0
    assert [run["stopped_by"] for run in finished.report["runs"]] == [None, None]
    assert finished.report["recorded"]["steps"] == 200
    assert not (tmp_path / ".determinism").exists()
