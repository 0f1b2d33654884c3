"""A run on two machines, each of which records its part, is compared as one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PROGRAMS, line, site_of
from tests.e2e.commands import COMMAND, Finished, run

PROGRAM = PROGRAMS / "ranks" / "machines.py"


def recorded(folder: Path, name: str, *arguments: str) -> Path:
    """Run two commands concurrently, each with the rank of its machine."""
    started = []
    for rank in range(2):
        program = [sys.executable, str(PROGRAM), str(folder / f"{name}.meeting"), *arguments]
        command = [*COMMAND, "record", "-o", name, "--part", f"machine-{rank}", "--", *program]
        variables = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
        started.append(subprocess.Popen(command, cwd=folder, env=variables))
    assert [process.wait(240) for process in started] == [0, 0]
    return folder / name


def compared(folder: Path, *runs: Path) -> tuple[Finished, dict[str, Any]]:
    finished = run(folder, "compare", *runs, "--json", "report.json")
    return finished, json.loads((folder / "report.json").read_text())


@pytest.mark.thorough("programs")
def test_the_rank_that_diverged_is_distinguished_from_the_one_that_received_its_data(tmp_path: Path) -> None:
    first, same, other = recorded(tmp_path, "first"), recorded(tmp_path, "same"), recorded(tmp_path, "other", "seed")

    finished, report = compared(tmp_path, first, same)
    assert (finished.status, report["verdict"], report["recorded"]["processes"]) == (0, "same", 2)
    assert report["recorded"]["blind_spots"] == []

    finished, report = compared(tmp_path, first, other)
    assert (finished.status, report["first_divergence"]["process"]) == (1, "main.rank-1")
    assert site_of(report) == ("ranks/machines", line("ranks/machines", "SITE seed"))
    assert [(d["process"], d["received_from"]) for d in report["divergences"]] == [("main.rank-0", "main.rank-1")]

    alone = [path / "parts" / "machine-0" for path in (first, same)]
    finished, report = compared(tmp_path, *alone)
    (spot,) = report["recorded"]["blind_spots"]
    assert (report["verdict"], spot["id"], spot["what"]) == ("same", "ranks-missing", "rank 1")

    shown = run(tmp_path, "show", first)
    assert shown.status == 0 and "parts machine-0, machine-1" in shown.text and "process main.rank-1" in shown.text
