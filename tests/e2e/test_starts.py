"""Programs started in each of the usual ways."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.clean_programs import STARTS, Program, module, shell
from tests.e2e.families import Fault, assert_named, assert_same, only, only_named

SCRIPT = """\
#!{python}
import sys
from starts.perceptron.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""
TRAINING = "starts/perceptron/training SITE"


def console_script(folder: Path, *arguments: str, exit_status: int = 0) -> Program:
    """Create the script that an installer generates for a package."""
    script = folder / "train-perceptron"
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    return Program((str(script), *arguments), exit_status=exit_status)


@pytest.mark.parametrize("name", only_named(["pytest"], STARTS))
def test_clean_programs_are_the_same(name: str, tmp_path: Path) -> None:
    report = assert_same(STARTS[name], tmp_path)
    assert report["recorded"]["steps"] >= 3


def test_a_script_with_its_own_exit_status_is_the_same(tmp_path: Path) -> None:
    assert_same(console_script(tmp_path, "failing", exit_status=3), tmp_path)


FAULTS = [
    Fault("package", module("starts.perceptron", "bit"), "op", 1, TRAINING),
    Fault("shell, first Python", shell("starts/both", "first", processes=2), "op", 1, "starts/fit SITE"),
    Fault("shell, second Python", shell("starts/both", "second", processes=2), "op", 2, "starts/tune SITE", "main-2"),
]


@pytest.mark.parametrize("fault", only(["package"], FAULTS))
def test_a_flipped_bit_is_named(fault: Fault, tmp_path: Path) -> None:
    assert_named(fault, tmp_path)


@pytest.mark.thorough("programs")
def test_a_flipped_bit_in_a_script_is_named(tmp_path: Path) -> None:
    assert_named(Fault("script", console_script(tmp_path, "bit"), "op", 1, TRAINING), tmp_path)


def test_a_flipped_bit_in_a_test_is_named(tmp_path: Path) -> None:
    fault = Fault("pytest", STARTS["pytest"], "op", 4, "starts/suite SITE")
    assert_named(fault, tmp_path, {"FAULT": "bit"})
