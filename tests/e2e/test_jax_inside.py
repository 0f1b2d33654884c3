"""An op that varies inside a compiled JAX function is reported with its line; nothing is reported if nothing varies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.checking import PROGRAMS, check_command, line
from tests.e2e.running import ENVIRONMENT

PROGRAM = "compiled_by_xla/racing_call"


@pytest.mark.parametrize(
    ("how", "functions"),
    [("plain", []), ("nested", ["inner"]), ("scanned", ["scan"]), ("parted", ["shard_map"])],
    ids=["plain", "nested", "scanned", "several devices"],
)
def test_the_equation_that_varies_is_reported_with_its_line(how: str, functions: list[str], tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / f"{PROGRAM}.py"), how]
    environment = {**ENVIRONMENT, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    report = check_command(tmp_path, command, options=("--budget", "1"), environment=environment).report

    first = report["first_divergence"]
    assert (report["verdict"], first["kind"], first["op"]) == ("different", "op", "jax::jit(step)")
    assert first["site"]["line"] == line(PROGRAM, "SITE step")
    inside = first["inside"]
    assert (inside["op"], inside["functions"]) == ("jax::ffi_call[add_in_any_order]", functions)
    assert inside["site"]["line"] == line(PROGRAM, "SITE race")
    assert "(custom-call) of the optimised program is the first that varies" in first["detail"]


def test_a_script_repeats_the_function_once_its_custom_call_is_registered(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / f"{PROGRAM}.py"), "nested"]
    report = check_command(tmp_path, command, options=("--budget", "1"), environment=ENVIRONMENT).report

    path = Path(report["reproducer"])
    assert "CUSTOM_CALLS = ['add_in_any_order']" in path.read_text()
    registered = f"import runpy, racing_call; runpy.run_path({str(path)!r}, run_name='__main__')"
    script = subprocess.run(
        [sys.executable, "-c", registered],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str((PROGRAMS / PROGRAM).parent)},
        check=False,
    )
    assert script.returncode == 1, script.stderr
    assert "jax::jit(step)" in script.stdout
    assert "output 0 differs in" in script.stdout


def test_the_cause_is_at_the_line_of_the_equation(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / f"{PROGRAM}.py"), "nested"]
    report = check_command(tmp_path, command, options=("--budget", "1"), environment=ENVIRONMENT).report

    (cause,) = report["causes"]
    assert (cause["id"], cause["status"]) == ("varying-op-jax", "likely")
    assert [site["line"] for site in cause["sites"]] == [line(PROGRAM, "SITE race"), line(PROGRAM, "SITE step")]


def test_the_stable_variant_is_the_same(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / f"{PROGRAM}.py"), "stable"]
    report = check_command(tmp_path, command, options=("--budget", "1"), environment=ENVIRONMENT).report

    assert report["verdict"] == "same"
    assert report["first_divergence"] is None
