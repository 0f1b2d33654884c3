"""Two equal runs of a racy program prove little, so more are made, and the report states how many."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.commands import TINY, check

RACY = [sys.executable, str(TINY / "racy.py")]


def test_equal_runs_of_a_racy_program_are_followed_by_three_more(tmp_path: Path) -> None:
    finished = check(tmp_path, "--", *RACY, "0", "threads", "pools")

    assert finished.status == 0
    assert finished.report["extra_runs"] == {"count": 3, "racy": ["pools", "threads"]}
    assert len(finished.report["runs"]) == 5
    assert "Same: 5 runs" in finished.text
    assert (
        "3 runs were made beyond the first two: the result may depend on timing or chance (pools and threads)"
        in finished.text
    )
    assert not (tmp_path / ".determinism").exists()


def test_extra_run_that_differs_is_the_last(tmp_path: Path) -> None:
    finished = check(tmp_path, "--", *RACY, "4", "threads")

    assert finished.status == 1
    assert finished.report["extra_runs"]["count"] == 2
    assert len(finished.report["runs"]) == 4


def test_no_extra_runs_are_made_beyond_the_requested_ones(tmp_path: Path) -> None:
    for options in (["-n", "2"], ["--no-explain"]):
        finished = check(tmp_path, *options, "--", *RACY, "0", "threads")
        assert len(finished.report["runs"]) == 2
        assert finished.report["extra_runs"] == {"count": 0, "racy": ["threads"]}
        assert "and may differ next time" in finished.text


def test_printed_numbers_that_differ_although_no_tensor_does_are_shown(tmp_path: Path) -> None:
    program = tmp_path / "score.py"
    program.write_text(
        f"import os, runpy, sys\nsys.path.insert(0, {str(TINY)!r})\nrunpy.run_path({RACY[1]!r})\nprint('score', int.from_bytes(os.urandom(6)) / 2**48)\n"
    )
    finished = check(tmp_path, "--", sys.executable, str(program), "0")
    assert finished.status == 0
    assert "no tensor differs, but run 1 printed: score " in finished.text
    assert finished.report["printed"]["runs"] == [1, 2]
    finished = check(tmp_path, "--", *RACY, "0")
    assert finished.report["printed"] is None


def test_no_extra_runs_are_made_if_nothing_is_racy(tmp_path: Path) -> None:
    finished = check(tmp_path, "--", *RACY, "0")

    assert len(finished.report["runs"]) == 2
    assert finished.report["extra_runs"] == {"count": 0, "racy": []}
