"""How results are kept, with their circumstances, and shown."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def surroundings(*packages: str) -> dict[str, Any]:
    """The date, the machine, how busy it is, and the versions of packages; those that are missing are left out."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "system": platform.platform(terse=True),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """A table with one line per row; the keys of the first are its head."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([row[name] for name in head] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(path: Path, around: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> None:
    """Keep results as JSON, with the machine and the versions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**around, "results": list(results)}, indent=1) + "\n")
