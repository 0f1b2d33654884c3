"""The output of a failing program is the same as without recording."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.checking import command, run_command

RECORD = (sys.executable, "-m", "determinism", "record", "-o", "trace", "--")
WAYS = [("uncaught",), ("caught", "logged", "thread", "child", "chained")]


@pytest.mark.parametrize("ways", WAYS, ids=["uncaught", "everywhere"])
def test_tracebacks_contain_only_the_programs_own_frames(ways: tuple[str, ...], tmp_path: Path) -> None:
    program = command("broken_layer", *ways)
    plain = run_command(tmp_path, program)
    recorded = run_command(tmp_path, [*RECORD, *program])

    assert plain.stderr.count("in multiply") == len(ways)
    own = [line for line in recorded.stderr.splitlines(keepends=True) if not line.startswith("determinism: ")]
    assert "".join(own) == plain.stderr
    assert recorded.returncode == plain.returncode == 1


def test_pytest_shows_only_the_programs_own_frames(tmp_path: Path) -> None:
    suite = tmp_path / "test_layer.py"
    suite.write_text("from broken_layer import fail\n\ndef test_layer():\n    fail()\n")
    words = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--durations=0", "--tb=short", str(suite))
    recorded = run_command(tmp_path, [*RECORD, *words])

    assert "in multiply" in recorded.stdout
    assert "determinism/frameworks" not in recorded.stdout
