"""Importing the package loads no framework and no other slow module."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "tensorflow", "keras", "jax", "jaxlib", "numpy", "pyarrow", "rich", "jinja2")

_HELP = "from determinism.__main__ import command\ntry:\n    command()({!r}, prog_name='determinism')\nexcept SystemExit: pass"


def heavy_imports(code: str, folder: Path | None = None) -> list[str]:
    """The heavy modules that a piece of code imports, in a separate Python process."""
    report = f"import sys, json; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600, cwd=folder).stdout
    found: list[str] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "code",
    [
        "import determinism",
        "import determinism; dir(determinism); determinism.DeterminismError",
        "import determinism.frameworks.registry",
        "import determinism.errors, determinism.types, determinism.environment, determinism.seeds, determinism.sites",
        "from determinism.launch import child",
        "import determinism; determinism.status('scatter_add')",
        "import determinism; determinism.enable(seed=1)",
        *(_HELP.format(arguments) for arguments in (["--help"], ["--version"])),
        *(
            _HELP.format([name, "--help"])
            for name in ("check", "check-resume", "run", "doctor", "record", "compare", "show", "status")
        ),
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert heavy_imports(code) == []


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_import_is_noticed(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").touch()

    assert heavy_imports(f"import sys; sys.path.insert(0, '.'); import {name}", tmp_path) == [name]


def test_the_import_of_pyarrow_by_compare_is_noticed() -> None:
    assert "pyarrow" in heavy_imports("import determinism; determinism.compare")
