"""Runs `determinism check` on a program, with a separate process for each run, and returns the report."""

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
PATIENCE = 1200
"""Seconds after which a command counts as hanging."""
NO_SEARCH = ("--budget", "0")
"""Skips the search for causes, which takes many runs; later options may request it."""
SEARCH = ("--budget", "900")
"""Gives the search for causes enough time even on a busy machine."""
_FREE = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTEST_ADDOPTS")
"""Environment variables that would fix settings that the programs leave open."""


class Checked(NamedTuple):
    """The outcome of a check."""

    report: dict[str, Any]
    """Validated against the schema and consistent with the exit status."""
    output: str
    """The text on standard output."""


def check(folder: Path, program: str, *arguments: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check a program in `programs/`, which must succeed and have no blind spots.

    Args:
        folder: The folder in which it runs and the report is written.
        program: Its path within `programs/`, without the extension.
        *arguments: Its arguments.
        options: Options for `determinism check`.

    Returns:
        The report.
    """
    report = check_command(folder, command(program, *arguments), options=options).report
    assert report["recorded"]["blind_spots"] == []
    return report


def command(program: str, *arguments: str) -> list[str]:
    """Return the command that starts a program in `programs/`."""
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
    """Check a command, each run of which must end with the given exit status.

    Args:
        folder: The folder in which it runs and the report is written.
        words: The command.
        options: Options for `determinism check`.
        environment: Additional environment variables.
        exit_status: The exit status of the program itself.
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
    """Run a command in a folder, with `programs/` on its module search path."""
    variables = {name: value for name, value in os.environ.items() if name not in _FREE}
    path = [str(PROGRAMS), *filter(None, [variables.get("PYTHONPATH")])]
    variables.update({"PYTHONPATH": os.pathsep.join(path), **(environment or {})})
    return subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, timeout=patience, check=False
    )


def line(program: str, mark: str = "SITE") -> int:
    """Return the number of the line of a program that ends with a comment with this mark."""
    lines = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8").splitlines()
    found = [number for number, text in enumerate(lines, 1) if re.search(rf"# {mark}$", text)]
    assert len(found) == 1, f"{mark!r} stands in lines {found} of {program}"
    return found[0]


def site_of(report: dict[str, Any], which: str = "site") -> tuple[str, int] | None:
    """Return the path within `programs/`, without the extension, and the line of the first divergence."""
    site = report["first_divergence"][which]
    if site is None:
        return None
    return Path(site["file"]).relative_to(PROGRAMS).with_suffix("").as_posix(), site["line"]
