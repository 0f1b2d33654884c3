"""Runs `determinism check` on a program, each run of which is a process of its own, and gives the report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema

from determinism.report.document import SCHEMA_FILE

PROGRAMS = Path(__file__).with_name("programs")
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
_EXIT_STATUS = {"same": 0, "different": 1, "inconclusive": 2}
PATIENCE = 240
"""Seconds after which a command counts as hanging."""
NO_SEARCH = ("--budget", "0")
"""Leaves out the search for causes, which takes many runs; options that follow may ask for it."""
SEARCH = ("--budget", "900")
"""Gives the search for causes time, on a busy machine too."""
_FREE = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTEST_ADDOPTS")
"""Variables that would fix what the programs leave open."""


class Checked(NamedTuple):
    """What a check came to."""

    report: dict[str, Any]
    """Has been seen to keep to the schema, and to go with the exit status."""
    output: str
    """What came on standard output."""


def check(folder: Path, program: str, *arguments: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check a program of `programs/`, which must end well and use nothing that cannot be recorded.

    Args:
        folder: Where it runs, and where the report is written.
        program: Its path within `programs/`, without the ending.
        *arguments: What it gets.
        options: For `determinism check`.

    Returns:
        The report.
    """
    report = check_command(folder, command(program, *arguments), options=options).report
    assert report["recorded"]["blind_spots"] == []
    return report


def command(program: str, *arguments: str) -> list[str]:
    """What starts a program of `programs/`."""
    return [sys.executable, str(PROGRAMS / f"{program}.py"), *arguments]


def check_command(
    folder: Path,
    words: Sequence[str],
    *,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    exit_status: int = 0,
    patience: float = PATIENCE,
) -> Checked:
    """Check a command, each run of which must end with an exit status.

    Args:
        folder: Where it runs, and where the report is written.
        words: The command.
        options: For `determinism check`.
        environment: Variables besides the current ones.
        exit_status: That of the program itself.
        patience: Seconds after which the command counts as hanging.
    """
    number = len(list(folder.glob("report-*.json")))
    report_file = folder / f"report-{number}.json"
    check = [sys.executable, "-m", "determinism", "check", "--json", str(report_file), *NO_SEARCH, *options, "--"]
    finished = run_command(folder, [*check, *words], environment, patience)
    assert report_file.exists(), finished.stdout + finished.stderr
    report: dict[str, Any] = json.loads(report_file.read_text(encoding="utf-8"))
    VALIDATOR.validate(report)
    assert finished.returncode == _EXIT_STATUS[report["verdict"]], finished.stdout + finished.stderr
    assert report["trouble"] == []
    statuses = {run["exit_status"] for run in report["runs"]}
    assert statuses == {exit_status}, finished.stdout + finished.stderr
    return Checked(report, finished.stdout)


def run_command(
    folder: Path, words: Sequence[str], environment: Mapping[str, str] | None = None, patience: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; what it imports from `programs/` is found."""
    variables = {name: value for name, value in os.environ.items() if name not in _FREE}
    path = [str(PROGRAMS), *filter(None, [variables.get("PYTHONPATH")])]
    variables.update({"PYTHONPATH": os.pathsep.join(path), **(environment or {})})
    return subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, timeout=patience, check=False
    )


def line(program: str, mark: str = "SITE") -> int:
    """The line of a program that ends with a comment of this mark."""
    lines = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8").splitlines()
    found = [number for number, text in enumerate(lines, 1) if re.search(rf"# {mark}$", text)]
    assert len(found) == 1, f"{mark!r} stands in lines {found} of {program}"
    return found[0]


def site_of(report: dict[str, Any], which: str = "site") -> tuple[str, int] | None:
    """Path within `programs/` without the ending, and line, of the first divergence."""
    site = report["first_divergence"][which]
    if site is None:
        return None
    return Path(site["file"]).relative_to(PROGRAMS).with_suffix("").as_posix(), site["line"]
