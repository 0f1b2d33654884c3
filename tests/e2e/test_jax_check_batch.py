"""`determinism check-batch` compares the rows of compiled JAX functions, and reports functions that combine rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PROGRAMS, VALIDATOR, line
from tests.e2e.commands import run


def checked(folder: Path, how: str) -> tuple[int, dict[str, Any]]:
    program = [sys.executable, str(PROGRAMS / "predicting_jax.py"), "--batch", "{batch}", how]
    finished = run(folder, "check-batch", "--json", "report.json", "--sizes", "8,24", "--", *program)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    VALIDATOR.validate(report)
    return finished.status, report


@pytest.mark.parametrize("how", ["rows", "indexing"])
def test_functions_that_compute_rows_independently_are_the_same(how: str, tmp_path: Path) -> None:
    status, report = checked(tmp_path, how)
    assert (status, report["verdict"]) == (0, "same")
    assert report["batch"]["rows_matched"] >= 24


@pytest.mark.parametrize(("how", "kind", "op"), [("mixing", "mixing", "centred"), ("drawing", "rng", "noisy")])
def test_the_function_that_changes_the_results_of_a_row_is_reported_with_its_line(
    how: str, kind: str, op: str, tmp_path: Path
) -> None:
    status, report = checked(tmp_path, how)
    assert (status, report["verdict"]) == (1, "different")
    first = report["first_divergence"]
    assert (report["batch"]["difference"]["kind"], first["op"]) == (kind, f"jax::jit({op})")
    assert first["site"]["line"] == line("predicting_jax", "SITE predict")
