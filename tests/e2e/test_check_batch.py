"""`determinism check-batch` reports whether a row's result depends on the batch that contains it, and the fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PROGRAMS, VALIDATOR, line
from tests.e2e.commands import Finished, run

PROGRAM = PROGRAMS / "batches.py"


def check_batch(folder: Path, *arguments: str, sizes: str = "1,8,24", command: tuple[str, ...] = ()) -> Finished:
    program = command or (sys.executable, str(PROGRAM), "--batch", "{batch}", *arguments)
    finished = run(folder, "check-batch", "--json", "report.json", "--sizes", sizes, "--", *program)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    VALIDATOR.validate(report)
    assert finished.status == {"same": 0, "different": 1, "inconclusive": 2}[report["verdict"]], finished.text
    return finished._replace(report=report)


def varies_with(environment: Mapping[str, str] | None, *arguments: str) -> bool:
    """Whether the program, run by itself, prints different digests for different batch sizes."""
    command = [sys.executable, str(PROGRAM), *arguments, "--batch"]
    variables = {**os.environ, **(environment or {})}
    return len({subprocess.check_output([*command, size], text=True, env=variables) for size in ("1", "8", "24")}) > 1


def variables_of(fix: Mapping[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in fix["env"] or []}


def batch_of(finished: Finished) -> dict[str, Any]:
    assert finished.report is not None
    return dict(finished.report["batch"])


def test_a_model_that_computes_rows_independently_is_the_same(tmp_path: Path) -> None:
    finished = check_batch(tmp_path)
    batch = batch_of(finished)

    assert finished.status == 0, finished.text
    assert "Same: 24 rows had equal results in batches of 1, 8 and 24" in finished.text
    assert batch["rows_matched"] == 24 and batch["places"] >= 3 and batch["results_differ"] is False
    assert batch["rows"] == [{"size": size, "count": 24} for size in (1, 8, 24)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json"]


def test_rows_are_matched_by_content_not_by_order(tmp_path: Path) -> None:
    finished = check_batch(tmp_path, "--order", sizes="1,24")

    assert finished.status == 0, finished.text
    assert batch_of(finished)["rows_matched"] == 24


@pytest.mark.thorough("resume-and-batch")
def test_varying_matrix_products_are_reported_with_verified_fixes(tmp_path: Path) -> None:
    arguments = ("--model", "products")
    varies = varies_with(None, *arguments)
    finished = check_batch(tmp_path, *arguments)
    report = finished.report

    assert report is not None
    assert report["verdict"] == ("different" if varies else "same"), finished.text
    if not varies:
        return
    first = report["first_divergence"]
    # Which of the two products has special kernels for certain sizes depends on the processor.
    assert (first["op"], first["kind"]) == ("aten::addmm", "op") and first["module"] in ("first", "second")
    assert (Path(first["site"]["file"]), first["site"]["line"]) == (PROGRAM, line("batches", "PRODUCT"))
    assert batch_of(finished)["tried"] != []
    for fix in report["fixes"]:
        variables = variables_of(fix)
        assert fix["verified"] and variables
        assert not varies_with(variables, *arguments)
        assert report["causes"][0]["status"] == "confirmed"


@pytest.mark.parametrize(
    ("model", "kind"),
    [("normed", "mixing"), pytest.param("dropping", "rng", marks=pytest.mark.thorough("resume-and-batch"))],
)
def test_a_model_left_in_training_mode_is_reported_and_fixed(tmp_path: Path, model: str, kind: str) -> None:
    finished = check_batch(tmp_path, "--model", model, "--train")
    report, batch = finished.report, batch_of(finished)

    assert finished.status == 1, finished.text
    assert report is not None and batch["difference"]["kind"] == kind
    assert [one["class"] for one in batch["training_modules"]] == ["BatchNorm1d" if model == "normed" else "Dropout"]
    assert [(fix["code"], fix["verified"]) for fix in report["fixes"]] == [("model.eval()", True)]
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("training-mode", "confirmed")]
    assert "model.eval()" in finished.text and "left in training mode" in finished.text
    # The report is kept beside the traces, for `determinism report`.
    (kept,) = (tmp_path / ".determinism").glob("*/report.json")
    assert json.loads(kept.read_text(encoding="utf-8"))["batch"] == batch
    assert f"determinism report -v {kept.parent.relative_to(tmp_path)}" in " ".join(finished.text.split())
    assert (kept.parent / "report.html").exists()


@pytest.mark.thorough("resume-and-batch")
def test_kernels_that_still_vary_in_evaluation_mode_are_fixed_as_well(tmp_path: Path) -> None:
    varies = varies_with(None, "--model", "dropping products")
    report = check_batch(tmp_path, "--model", "dropping products", "--train").report
    assert report is not None

    assert report["verdict"] == "different"
    if varies and not report["fixes"]:
        # On some processors, no oneMKL setting makes the row of a batch of one equal to that of a larger batch.
        tried = [variables_of(one) for one in report["batch"]["tried"]]
        assert any(tried) and all(varies_with(variables, "--model", "dropping products") for variables in tried)
        return
    [fix] = report["fixes"]
    variables = variables_of(fix)
    assert fix["verified"] and fix["code"].startswith("model.eval()") and bool(variables) is varies
    assert not varies_with(variables, "--model", "dropping products")
    assert [cause["id"] for cause in report["causes"]] == ["training-mode", *["kernel"] * varies]
    assert {cause["status"] for cause in report["causes"]} == {"confirmed"}


@pytest.mark.thorough("resume-and-batch")
@pytest.mark.parametrize("model", ["normed", "dropping"])
def test_the_same_models_in_evaluation_mode_are_the_same(tmp_path: Path, model: str) -> None:
    assert check_batch(tmp_path, "--model", model).status == 0


@pytest.mark.thorough("resume-and-batch")
def test_padding_that_changes_results_is_reported(tmp_path: Path) -> None:
    finished = check_batch(tmp_path, "--model", "mean of texts")

    assert finished.status == 1, finished.text
    assert batch_of(finished)["difference"]["kind"] == "padding"


@pytest.mark.thorough("resume-and-batch")
def test_padding_that_changes_no_results_is_the_same(tmp_path: Path) -> None:
    finished = check_batch(tmp_path, "--model", "maximum of texts")

    assert finished.status == 0, finished.text
    assert batch_of(finished)["rows_matched"] == 24


@pytest.mark.parametrize(
    ("arguments", "identifier"),
    [
        pytest.param(("--unseeded", "samples"), "batch-rows-unmatched", marks=pytest.mark.thorough("resume-and-batch")),
        (("--unseeded", "weights", "--model", "products"), "batch-weights-differ"),
        (("--always", "8"), "batch-without-rows"),
        (("--model", "normed flat", "--train"), "batch-run-failed"),
    ],
)
def test_a_check_that_matched_no_rows_is_inconclusive(
    tmp_path: Path, arguments: tuple[str, ...], identifier: str
) -> None:
    finished = check_batch(tmp_path, *arguments, sizes="1,8")

    assert finished.status == 2, finished.text
    assert finished.trouble == [identifier]
    if identifier != "batch-run-failed":
        assert batch_of(finished)["rows_matched"] == 0


@pytest.mark.parametrize(
    ("sizes", "command", "identifier"),
    [
        ("1,8", ("python", "a.py"), "batch-place-missing"),
        ("8,8", ("python", "{batch}"), "batch-sizes"),
        ("0,8", ("python", "{batch}"), "batch-sizes"),
        ("1,many", ("python", "{batch}"), "usage"),
    ],
)
def test_commands_that_leave_nothing_to_compare_are_rejected(
    tmp_path: Path, sizes: str, command: tuple[str, ...], identifier: str
) -> None:
    finished = check_batch(tmp_path, sizes=sizes, command=command)

    assert finished.trouble == [identifier]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json"]


def test_rows_computed_outside_the_framework_need_the_python_function(tmp_path: Path) -> None:
    (tmp_path / "predict.py").write_text(
        "import sys, torch, numpy as np\nprint(np.ones((int(sys.argv[1]), 4)).sum(axis=1)[0])\n"
    )
    finished = run(tmp_path, "check-batch", "--", sys.executable, "predict.py", "{batch}")
    assert finished.status == 2
    said = " ".join(finished.text.split())
    assert "batches of ." not in said
    assert "For TensorFlow or NumPy, pass the function to determinism.check_batch_invariance" in said
