"""Runs in a copy of the working directory: they find all files, leave none behind, and the report names the originals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.commands import TINY, check, run

PROGRAM = f"""
import os, pathlib, subprocess, sys
sys.path.append({str(TINY)!r})
import tinyframe as frame
from package import scale
assert not os.path.exists("made")
pathlib.Path("made").write_text("x")
pathlib.Path("data/own.txt").write_text("changed")
os.makedirs("locked"); pathlib.Path("locked/file").touch(); os.chmod("locked", 0o500)
print(os.getcwd() == os.environ["PWD"], sorted(os.listdir()))
print(pathlib.Path("../beside/number.txt").read_text(), pathlib.Path("outside/number.txt").read_text())
print(os.path.realpath("inside") == os.path.realpath("data"), os.path.islink("inside"))
frame.manual_seed(0) if len(sys.argv) == 1 else frame.seed()
scale.scaled(frame.randn(4))
"""
SCALE = "import tinyframe as frame\ndef scaled(values):\n    return frame.mean(values).item()\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with links, a package, data, a virtual environment and a sibling folder."""
    folder = tmp_path / "project"
    for name in ("data", "package", ".git", ".venv/bin", ".determinism/old", "../beside"):
        (folder / name).mkdir(parents=True)
    (folder / "../beside/number.txt").write_text("17")
    (folder / "data/own.txt").write_text("mine")
    (folder / "package/scale.py").write_text(SCALE)
    (folder / ".venv/pyvenv.cfg").touch()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "outside").symlink_to("../beside")
    (folder / "inside").symlink_to(folder / "data")
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that no other test uses at the same time."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_the_program_finds_the_same_files_as_in_its_folder(project: Path, temporary: Path) -> None:
    finished = check(project, "--fresh-copy", "--", sys.executable, "train.py")

    assert finished.status == 0, finished.text
    found = [".git", ".venv", "data", "inside", "locked", "made", "outside", "package", "train.py"]
    assert finished.stdout.decode().splitlines()[:3] == [f"True {found}", "17 17", "True True"]
    assert (project / "data/own.txt").read_text() == "mine"
    assert not (project / "made").exists()
    assert list(temporary.iterdir()) == []


def test_the_report_names_the_original_files(project: Path) -> None:
    finished = check(project, "--fresh-copy", "--output", "out", "--", sys.executable, "train.py", "unseeded")

    assert finished.status == 1
    first = finished.report["first_divergence"]
    assert first["kind"] == "rng"
    assert (first["site"]["file"], first["site"]["line"]) == (str(project / "train.py"), 14)
    shown = run(project, "show", "--records", "50", "out/run-1").stdout.decode()
    assert "train.py:14" in shown
    assert "determinism-" not in shown

    again = check(project, "--runs-from", "out", "--", sys.executable, "train.py", "unseeded")
    assert again.report["first_divergence"]["site"] == first["site"]


def test_a_folder_that_is_too_large_is_not_copied(project: Path, temporary: Path) -> None:
    with (project / "huge.bin").open("wb") as file:
        file.truncate(5 << 40)
    finished = check(project, "--fresh-copy", "--", sys.executable, "train.py")

    assert finished.trouble == ["copy-too-large"]
    assert "holds 5,497,55" in finished.text
    assert finished.report["runs"] == []
    assert list(temporary.iterdir()) == []
