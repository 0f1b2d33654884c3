"""Following only the advice of `determinism check` takes each of the four first-steps scripts from different to same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.checking import SEARCH, check_command

SCRIPTS = Path(__file__).parents[2] / "examples" / "first_steps"
CAUSES = {
    "cnn": "generator-unseeded",
    "transformer": "seed-missing-torch",
    "augmentation": "seed-missing-numpy",
    "vocabulary": "hash-order",
}


@pytest.mark.thorough("causes-seeding")
@pytest.mark.skipif(shutil.which("patch") is None, reason="the fix is applied with patch(1)")
@pytest.mark.parametrize("name", CAUSES)
def test_the_printed_fix_makes_the_script_the_same(name: str, tmp_path: Path) -> None:
    shutil.copyfile(SCRIPTS / f"{name}.py", tmp_path / "train.py")
    command = [sys.executable, "train.py"]

    report = check_command(tmp_path, command, options=SEARCH).report
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [(CAUSES[name], "confirmed")]
    assert report["fixes"][0]["verified"]

    (patch,) = tmp_path.rglob("fix.patch")
    subprocess.run(["patch", "-p0", "-i", str(patch)], cwd=tmp_path, check=True, capture_output=True)
    assert check_command(tmp_path, command, options=SEARCH).report["verdict"] == "same"
