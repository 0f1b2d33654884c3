"""Slow tests are distributed so that each commit runs about the same number of seconds of them, and each test gets its turn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.slow_tests import LEAST, PARTS, TURNS, VARIABLE, dealt, merged, stored_seconds
from tests.thorough import PARTS as THOROUGH_PARTS
from tests.thorough import ROOT


def test_each_hand_has_about_the_same_number_of_seconds() -> None:
    seconds = stored_seconds()
    hands = dealt(seconds)

    held = [sum(seconds[name] for name in seconds if hands[name] == hand) for hand in range(TURNS)]
    assert hands.keys() == seconds.keys()
    assert max(held) - min(held) <= max(seconds.values())
    assert min(held) > 0


def test_the_files_of_the_slow_tests_exist() -> None:
    assert {name for name in stored_seconds() if not (ROOT / name.split("::")[0]).is_file()} == set()
    assert set(PARTS.values()) <= THOROUGH_PARTS.keys()


def test_tests_that_were_not_run_keep_their_seconds_and_fast_tests_are_dropped() -> None:
    stored = {"a": 9.0, "b": 8.0, "c": 7.0}
    measured = {"b": LEAST - 0.1, "c": 5.0, "d": LEAST, "e": 0.2}

    assert merged(stored, measured) == {"a": 9.0, "c": 5.0, "d": LEAST}


def test_architecture_tests_are_run_at_each_commit() -> None:
    assert merged({}, {"tests/architecture/test_code.py::test_any": 9.0, "tests/unit/test_any.py::test_any": 9.0}) == {
        "tests/unit/test_any.py::test_any": 9.0
    }
    assert [name for name in stored_seconds() if name.startswith("tests/architecture")] == []


SOME = """
import pytest

def test_passes(): pass

@pytest.mark.skip
def test_is_marked(): pass

def test_skips_itself(): pytest.skip("nothing is there")

def test_fails(): assert False
"""


def test_only_tests_that_passed_are_measured(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SOME, encoding="utf-8")
    environment = {**os.environ, VARIABLE: str(tmp_path / "seconds.tsv"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.slow_tests", "-p", "no:cacheprovider", "test_some.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert "1 failed, 1 passed, 2 skipped" in done.stdout
    assert stored_seconds(tmp_path / "seconds.tsv").keys() == {"test_some.py::test_passes"}
