"""Runs the command `determinism` as a user would, and returns its outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema

from determinism.report.document import SCHEMA_FILE

TINY = Path(__file__).with_name("tiny")
"""A framework that is quick to import, and programs that use it: tests of launching need no real framework."""
BREAKING = str(TINY / "breaking.py")
COMMAND = [sys.executable, "-m", "determinism"]
_VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
_STATUS = {"same": 0, "different": 1, "inconclusive": 2}


class Finished(NamedTuple):
    """How a command ended."""

    status: int
    stdout: bytes
    stderr: str
    report: dict[str, Any] | None

    @property
    def text(self) -> str:
        """Everything it printed, joined into one line."""
        return " ".join((self.stdout.decode(errors="replace") + self.stderr).split())

    @property
    def trouble(self) -> list[str]:
        """Identifiers of the problems in the report."""
        assert self.report is not None
        return [trouble["id"] for trouble in self.report["trouble"]]


def run(
    folder: Path,
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    within: str | None = None,
    timeout: float = 240,
) -> Finished:
    """Run `determinism` with arguments in a folder, and assert that it prints no traceback of its own.

    Args:
        folder: The working directory.
        *arguments: The command's arguments.
        environment: Variables added to the current environment.
        within: Shell code to execute first, in the same shell.
        timeout: Maximum duration in seconds.
    """
    command = [*COMMAND, *map(str, arguments)]
    if within is not None:
        command = ["bash", "-c", f'{within}; exec "$@"', "bash", *command]
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    stderr = ended.stderr.decode(errors="replace")
    assert "determinism/cli" not in stderr, stderr
    return Finished(ended.returncode, ended.stdout, stderr, None)


def check(folder: Path, *arguments: str | Path, **options: Any) -> Finished:
    """Run `determinism check`; the report must satisfy the schema and agree with the exit status."""
    return _with_report(folder, "check", "--budget", "0", *arguments, **options)


def compare(folder: Path, *arguments: str | Path) -> Finished:
    """Run `determinism compare`, with the same requirements."""
    return _with_report(folder, "compare", *arguments)


def _with_report(folder: Path, command: str, *arguments: str | Path, **options: Any) -> Finished:
    file = folder / "report.json"
    file.unlink(missing_ok=True)
    finished = run(folder, command, "--json", file, *arguments, **options)
    assert file.exists(), finished.text
    report = json.loads(file.read_text(encoding="utf-8"))
    _VALIDATOR.validate(report)
    assert finished.status == _STATUS[report["verdict"]], finished.text
    return finished._replace(report=report)


def program(*arguments: str) -> list[str]:
    """Return the command line of the breaking program, with the tiny framework."""
    return [sys.executable, BREAKING, *arguments]


def torch_program(*arguments: str) -> list[str]:
    """Return the command line of the same program with PyTorch."""
    return [sys.executable, str(Path(__file__).with_name("programs") / "breaking.py"), *arguments]


def tiny_code(code: str) -> list[str]:
    """Return the command line that executes a line of code with the tiny framework imported as `frame`."""
    return [sys.executable, "-c", f"import sys; sys.path.append({str(TINY)!r}); import tinyframe as frame; {code}"]
