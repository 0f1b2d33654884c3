"""Ctrl-C ends the program and leaves what it had recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from determinism.trace.opening import open_trace
from tests.e2e.commands import COMMAND, compare, program


def interrupt(folder: Path, *arguments: str, group: bool) -> int:
    """Start a command, interrupt it when the program waits, and give its exit status."""
    process = subprocess.Popen([*COMMAND, *arguments], cwd=folder, start_new_session=True, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (folder / "waiting").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    if group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert b"determinism/cli" not in stderr
    return process.returncode


@pytest.mark.parametrize("group", [True, False], ids=["process group", "parent only"])
def test_check(group: bool, tmp_path: Path) -> None:
    status = interrupt(tmp_path, "check", "--json", "r.json", "--output", "out", "--", *program("wait"), group=group)

    assert status == 2
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verdict"] == "inconclusive"
    assert [trouble["id"] for trouble in report["trouble"]] == ["interrupted"]
    assert [run["stopped_by"] for run in report["runs"]] == ["interrupt"]
    trace = open_trace(tmp_path / "out" / "run-1")
    (process,) = trace.processes
    assert process.extent[1] == 2
    assert trace.manifest["stopped_by"] == "interrupt"
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout == b""


def test_record(tmp_path: Path) -> None:
    status = interrupt(tmp_path, "record", "-o", "cut", "--", *program("wait"), group=True)
    assert status == 128 + signal.SIGINT

    assert (
        subprocess.run([*COMMAND, "record", "-o", "whole", "--", *program()], cwd=tmp_path, check=False).returncode == 0
    )
    for order in (("cut", "whole"), ("whole", "cut")):
        finished = compare(tmp_path, *order)
        assert "interrupted" in finished.trouble
        assert finished.report["first_divergence"] is None
