"""Look up the documented behavior of each PyTorch op in deterministic mode, release by release.

`python -m tests.architecture.torch_documented 2.14.1 2.15.0` downloads the wheels of these releases for macOS (the smallest,
70 to 120 MB each), reads the docstring of the function that turns the mode on, and writes names, devices, conditions and
verdicts into `torch_documented.json` next to this file. Each line has the ranges of releases for which it holds.
"""

from __future__ import annotations

import ast
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.architecture.xla_flags import downloaded, release_key
from tests.documented_ops import Documented, entries_of

RESULTS = Path(__file__).with_suffix(".json")
FUNCTIONS = ("use_deterministic_algorithms", "set_deterministic")
PLATFORMS = ("macosx_14_0_arm64", "macosx_11_0_arm64", "macosx_10_9_x86_64")
PYTHONS = (((2, 0), "3.11"), ((0,), "3.8"))
"""Releases, each with the version of Python for which it and later ones have wheels."""


def docstring_of(source: str) -> str:
    """The docstring of the function that turns deterministic mode on."""
    functions = {
        node.name: ast.get_docstring(node, clean=False)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    return next((functions[name] or "" for name in FUNCTIONS if name in functions), "")


def looked_up(version: str) -> list[Documented]:
    """The entries of the docstring of a release."""
    python = next(python for since, python in PYTHONS if release_key(version) >= since)
    with tempfile.TemporaryDirectory() as folder:
        sources = [
            archive.read(name).decode()
            for archive in downloaded(f"torch=={version}", Path(folder), python, PLATFORMS)
            for name in archive.namelist()
            if name == "torch/__init__.py"
        ]
    entries = entries_of(docstring_of("".join(sources)))
    if len({entry.verdict for entry in entries}) < 2:
        raise SystemExit(
            f"The docstring of PyTorch {version} was not understood: {len(entries)} entries were found in it."
        )
    return entries


def by_release() -> dict[str, list[Documented]]:
    """The entries of each release that was looked up."""
    if not RESULTS.exists():
        return {}
    stored: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    found: dict[str, list[Documented]] = {version: [] for version in stored["releases"]}
    for row in stored["entries"]:
        entry = Documented(
            tuple(row["names"]),
            tuple(row["devices"]) or (None,),
            row["direction"],
            tuple(row["conditions"]),
            row["verdict"],
        )
        for first, last in row["releases"]:
            for version in found:
                if release_key(first) <= release_key(version) <= release_key(last):
                    found[version].append(entry)
    return found


def ranges(versions: list[str], every: list[str]) -> list[list[str]]:
    """The first and last release of each consecutive series."""
    found: list[list[str]] = []
    for version in versions:
        if found and every.index(found[-1][1]) + 1 == every.index(version):
            found[-1][1] = version
        else:
            found.append([version, version])
    return found


def written(found: dict[str, list[Documented]]) -> str:
    """The file: one line for each entry."""
    every = sorted(found, key=release_key)
    rows = []
    for entry in sorted({entry for entries in found.values() for entry in entries}, key=str):
        releases = ranges([version for version in every if entry in found[version]], every)
        devices = [device for device in entry.devices if device]
        rows.append(json.dumps({**entry._asdict(), "devices": devices, "releases": releases}))
    return f'{{"releases": {json.dumps(every)},\n"entries": [\n' + ",\n".join(rows) + "\n]}\n"


def main(versions: list[str]) -> int:
    """Look up these releases, in addition to those that were looked up before."""
    found = by_release()
    for version in versions:
        found[version] = looked_up(version)
        print(f"PyTorch {version}: {len(found[version])} entries")
        RESULTS.write_text(written(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
