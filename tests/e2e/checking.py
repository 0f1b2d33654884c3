"""Runs `determinism check` on a program, each run of which is a process of its own, and gives the report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema

from determinism.report.document import SCHEMA_FILE

PROGRAMS = Path(__file__).with_name("programs")
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
_EXIT_STATUS = {"same": 0, "different": 1, "inconclusive": 2}
_FREE = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTEST_ADDOPTS")
"""Variables that would fix what the programs leave open."""


def check(folder: Path, program: str, *arguments: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check a program of `programs/`.

    Args:
        folder: Where it runs, and where the report is written.
        program: Its name, without the ending.
        *arguments: What it gets.
        options: For `determinism check`.

    Returns:
        The report, which has been seen to keep to the schema and to go with the exit status.
    """
    number = len(list(folder.glob("report-*.json")))
    report_file = folder / f"report-{number}.json"
    command = [sys.executable, "-m", "determinism", "check", "--json", str(report_file), *options, "--"]
    environment = {name: value for name, value in os.environ.items() if name not in _FREE}
    finished = subprocess.run(
        [*command, sys.executable, str(PROGRAMS / f"{program}.py"), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert report_file.exists(), finished.stdout + finished.stderr
    report: dict[str, Any] = json.loads(report_file.read_text(encoding="utf-8"))
    VALIDATOR.validate(report)
    assert finished.returncode == _EXIT_STATUS[report["verdict"]], finished.stdout + finished.stderr
    assert report["trouble"] == []
    assert [run["exit_status"] for run in report["runs"]] == [0, 0], finished.stdout + finished.stderr
    assert report["recorded"]["blind_spots"] == [], "the programs use nothing that cannot be recorded"
    return report


def line(program: str, mark: str = "SITE") -> int:
    """The line of a program that ends with a comment of this mark."""
    lines = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8").splitlines()
    found = [number for number, text in enumerate(lines, 1) if re.search(rf"# {mark}$", text)]
    assert len(found) == 1, f"{mark!r} stands in lines {found} of {program}"
    return found[0]


def site_of(report: dict[str, Any], which: str = "site") -> tuple[str, int] | None:
    """File name without the ending, and line, of the first divergence."""
    site = report["first_divergence"][which]
    return None if site is None else (Path(site["file"]).relative_to(PROGRAMS).stem, site["line"])
