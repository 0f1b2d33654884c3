"""The files and output of a check contain no secrets, and only the owner can read the files."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from determinism.redaction import REDACT_VARIABLE
from tests.e2e.commands import TINY, check, tiny_code

PROGRAM = f"""
import subprocess, sys
sys.path.append({str(TINY)!r})
import tinyframe as frame
token = sys.argv[-1].partition("=")[2]
print("as given" if len(token) == 7 and token in sys.argv else "changed")
if "different" in sys.argv:
    frame.mean(frame.randn(3)).item()
frame.mean(frame.full(3, 1.0)).item()
subprocess.run([sys.executable, "-S", "-c", "import sys", "--token", token])
"""
SECRETS = ("hunter2", "hf_aB3dE5gH7jK9mN1pQ3sT5vW7", "s3cr3tOfNvidia", "dbPassw0rd", "hubT0ken")
ARGUMENTS = ["--token", SECRETS[0], "--login", SECRETS[1], "--db-password=" + SECRETS[0]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the program in it, and secrets around it."""
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.setenv("NVIDIA_API_KEY", SECRETS[2])
    monkeypatch.setenv("TF_VAR_db_password", SECRETS[3])
    monkeypatch.setenv("TORCH_HUB_TOKEN", SECRETS[4])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def holding(folder: Path, texts: tuple[str, ...]) -> set[str]:
    """Return the names of files below a folder that contain one of the texts, except logs of the program's own output."""
    return {
        path.name
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".log" and any(text.encode() in path.read_bytes() for text in texts)
    }


def test_secrets_are_neither_stored_nor_shown(folder: Path) -> None:
    reports = ["--html", "report.html", "--junit", "report.xml", "--annotate"]
    program = [sys.executable, "train.py", "different", *ARGUMENTS]
    finished = check(folder, "--output", "out", "--keep", "--no-explain", *reports, "--", *program)

    assert finished.status == 1
    shown = finished.text + json.dumps(finished.report)
    assert [text for text in SECRETS if text in shown] == []
    assert holding(folder, SECRETS) == set()
    command = json.loads((folder / "out" / "run-1" / "manifest.json").read_text())["command"]
    assert command == [*program[:3], "--token", "***", "--login", "***", "--db-password=***"]
    described = json.loads((folder / "out" / "run-1" / "processes" / "main" / "process.json").read_text())
    assert described["argv"] == ["train.py", *command[2:]]
    assert described["environment"]["variable OMP_NUM_THREADS"] == "1"
    # The program itself gets its arguments unchanged.
    assert b"as given" in finished.stdout

    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder / "out").rglob("*")}
    assert {path.name for path, mode in modes.items() if mode & 0o077} == set()
    assert stat.S_IMODE((folder / "out").stat().st_mode) == 0o700


def test_redaction_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REDACT_VARIABLE, "0")
    program = [sys.executable, "train.py", *ARGUMENTS]
    finished = check(folder, "--output", "out", "--keep", "--", *program)

    assert finished.status == 0
    assert finished.report["runs"][0]["command"] == program
    assert "manifest.json" in holding(folder / "out", SECRETS[:1])
    # Secret values of the environment are never stored.
    assert holding(folder / "out", SECRETS[2:]) == set()


def test_umask_of_the_program_is_unchanged(folder: Path) -> None:
    mask = os.umask(0o022)
    try:
        check(folder, "--", *tiny_code("frame.full(2, 1.0); open('written', 'w').close()"))
    finally:
        os.umask(mask)
    assert stat.S_IMODE((folder / "written").stat().st_mode) == 0o644
