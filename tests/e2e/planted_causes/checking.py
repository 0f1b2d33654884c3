"""Checks a planted program or its twin, and finds errors in the report."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.e2e.checking import SEARCH, check_command
from tests.e2e.expected_causes import PATIENCE, SURROUNDINGS
from tests.e2e.planted_causes.planted import Planted
from tests.e2e.planted_causes.seeding_libraries import INSTALLED
from tests.e2e.running import ENVIRONMENT


def checked(program: Planted, folder: Path, *options: str, twin: bool = False) -> dict[str, Any]:
    """Check a program or its twin, and return the report."""
    (folder / "program.py").write_text(program.twin if twin else program.source, encoding="utf-8")
    for name, text in program.modules:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    path = filter(None, [str(folder / INSTALLED), os.environ.get("PYTHONPATH")])
    environment = {**ENVIRONMENT, **SURROUNDINGS, "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "program.py"]
    return check_command(
        folder, command, options=(*SEARCH, *options), environment=environment, patience=PATIENCE
    ).report


def faults(program: Planted, report: dict[str, Any]) -> list[str]:
    """Return the errors and omissions in the report on a program."""
    if report["verdict"] != "different":
        return [f"the verdict is {report['verdict']}"]
    if not report["causes"]:
        return [f"no cause: {report['diagnosis']}" if "diagnosis" in report else "no cause"]
    found = []
    cause = report["causes"][0]
    if cause["id"] not in program.causes:
        found.append(f"the first cause is {cause['id']}")
    if cause["status"] not in program.statuses:
        found.append(f"it is {cause['status']}")
    sites = [(Path(site["file"]).name, site["line"]) for site in cause["sites"][:1]]
    if not any(name == "program.py" and line in program.named_lines() for name, line in sites):
        found.append(f"its line is {sites}")
    strangers = [one["id"] for one in report["causes"] if one["id"] not in program.causes]
    if strangers:
        found.append(f"beside it are named {strangers}")
    if program.is_fixed and not any(fix["verified"] for fix in report["fixes"]):
        found.append(f"no fix is verified: {report['fixes']}")
    return found
