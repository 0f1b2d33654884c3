"""Recording leaves compilers and tracers alone: they see the program as it is, and it computes the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.checking import PROGRAMS

PROGRAM = [sys.executable, str(PROGRAMS / "traced.py")]


def test_compiled_scripted_traced_and_exported_code_computes_what_it_computes_unrecorded(tmp_path: Path) -> None:
    plain = subprocess.run(PROGRAM, capture_output=True, text=True, check=True, cwd=tmp_path)
    command = [sys.executable, "-m", "determinism", "check", "--", *PROGRAM]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.startswith(plain.stdout)
    assert checked.stdout.removeprefix(plain.stdout).startswith("Same: ")
    assert "Warning" not in checked.stderr
