"""Recording does not affect compilers and tracers: they see the program unchanged, and it computes the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PROGRAMS, line

PROGRAM = [sys.executable, str(PROGRAMS / "traced.py")]


def test_compiled_scripted_traced_and_exported_code_computes_the_same_when_recorded(tmp_path: Path) -> None:
    plain = subprocess.run(PROGRAM, capture_output=True, text=True, check=True, cwd=tmp_path)
    command = [sys.executable, "-m", "determinism", "check", "--", *PROGRAM]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.startswith(plain.stdout)
    assert checked.stdout.removeprefix(plain.stdout).startswith("Same: ")
    assert "Warning" not in checked.stderr


def _check_fused(folder: Path, mode: str, *options: str) -> dict[str, Any]:
    report = folder / "report.json"
    command = [sys.executable, "-m", "determinism", "check", "--json", str(report), *options, "--"]
    program = [sys.executable, str(PROGRAMS / "fused_sums.py"), mode]
    subprocess.run([*command, *program], capture_output=True, check=False, cwd=folder)
    found: dict[str, Any] = json.loads(report.read_text())
    assert found["recorded"]["blind_spots"] == []
    return found


@pytest.mark.thorough("programs")
@pytest.mark.parametrize(
    ("mode", "site", "op"),
    [("racing", "SITE fused", "index_add"), ("racing backward", "SITE looked up", "index_put")],
)
def test_a_fused_kernel_that_varies_is_reported_with_the_op_and_line_inside_it(
    mode: str, site: str, op: str, tmp_path: Path
) -> None:
    for _ in range(10):  # on a busy machine, two threads may not overlap
        found = _check_fused(tmp_path, mode, "--explain")
        if found["verdict"] != "same":
            break
    first = found["first_divergence"]
    assert (found["verdict"], first["kind"]) == ("different", "op")
    assert first["op"].startswith("inductor::cpp_fused"), first["op"]
    if mode == "racing":
        assert line("fused_sums") in [frame["line"] for frame in first["stack"]]
    # An entry about an empty cache may come first.
    place = next(entry["label"] for entry in found["story"] if "fused_sums.py" in entry["label"])
    assert place.endswith(f"fused_sums.py:{line('fused_sums', site)}")
    (inside,) = (entry["text"] for entry in found["story"] if entry["label"] == "inside")
    assert op in inside


@pytest.mark.thorough("programs")
def test_a_fused_kernel_that_does_not_vary_is_the_same(tmp_path: Path) -> None:
    found = _check_fused(tmp_path, "fixed", "--no-explain")
    assert found["verdict"] == "same"
    assert found["dead_differences"]["count"] == 0, "addresses are no values"
