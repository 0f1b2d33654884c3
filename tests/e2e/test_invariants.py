"""`check --invariants`: values that must agree within a run, but do not, are found in one run of real programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PROGRAMS, command, line
from tests.e2e.clean_programs import ALL, ranks
from tests.e2e.commands import Finished, run

PROGRAM = "ranks/data_parallel"
MORE = pytest.mark.thorough("invariants")


def checked(folder: Path, program: str, *arguments: str, options: tuple[str, ...] = ()) -> tuple[Finished, Any]:
    """Check one run of a program with ranks; return how the command ended, and the report."""
    words = ("check", "--invariants", "--output", "kept", "--json", "report.json", *options, "--")
    environment = {"PYTHONPATH": str(PROGRAMS), "OMP_NUM_THREADS": "1"}
    finished = run(folder, *words, *ranks(program, *arguments).words, environment=environment)
    return finished, json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize(
    "how", ["clean", pytest.param("evaluated", marks=MORE), pytest.param("sharded optimizer", marks=MORE)]
)
def test_clean_replicas_are_consistent(how: str, tmp_path: Path) -> None:
    finished, report = checked(tmp_path, PROGRAM, how)

    assert (finished.status, report["verdict"], report["violations"]) == (0, "same", []), finished.stderr
    assert (report["ranks"], report["steps"], report["compared"].get("replicas", 0)) == (2, 4, 6)
    assert not (tmp_path / "kept").exists()


@MORE
def test_ranks_that_train_independently_are_inconclusive(tmp_path: Path) -> None:
    finished, report = checked(tmp_path, PROGRAM, "apart")

    assert (finished.status, report["verdict"], report["compared"].get("replicas", 0)) == (2, "inconclusive", 0), (
        finished.stderr
    )


@pytest.mark.parametrize(
    ("how", "step", "culprits", "what"),
    [
        ("gradient", 2, [1], "gradient module.0.weight"),
        pytest.param("clipped", 3, [0], "gradient ", marks=MORE),
        pytest.param("weight", 3, [1], "parameter module.0.weight", marks=MORE),
        pytest.param("row", 3, [1], "parameter module.0.weight", marks=MORE),
        pytest.param("rate", 2, [0, 1], "parameter module.0.weight", marks=MORE),
        ("batches", 1, [1], "batch"),
    ],
)
def test_a_planted_violation_is_named_with_rank_step_and_line(
    how: str, step: int, culprits: list[int], what: str, tmp_path: Path
) -> None:
    finished, report = checked(tmp_path, PROGRAM, how)

    assert (finished.status, report["verdict"]) == (1, "different"), finished.stderr
    (violation,) = report["violations"]
    assert (violation["step"], violation["ranks"]) == (step, culprits)
    assert violation["what"].startswith(what)
    assert violation["site"]["line"] == line(PROGRAM, f"SITE {how}")
    stored = run(tmp_path, "compare", "--invariants", "kept/run-1")
    assert stored.status == 1
    assert f"data_parallel.py:{violation['site']['line']}" in stored.text


@MORE
@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("gradient", "gradient module.0.weight"),
        ("weight", "parameter module.0.weight"),
    ],
)
def test_a_fault_in_the_first_step_is_found(how: str, what: str, tmp_path: Path) -> None:
    finished, report = checked(tmp_path, PROGRAM, how, "0")

    assert finished.status == 1, finished.stderr
    (violation,) = report["violations"]
    assert violation["what"] == what
    assert violation["site"]["line"] == line(PROGRAM, f"SITE {how}")


def alone(folder: Path, program: str, how: str) -> tuple[Finished, Any]:
    """Check one run of a single-process program."""
    files = ("--json", "report.json", "--html", "page.html")
    finished = run(folder, "check", "--invariants", *files, "--", *command(program, how))
    return finished, json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize(
    "how", ["selective", *(pytest.param(how, marks=MORE) for how in ("clean", "reentrant", "autocast"))]
)
def test_equal_recomputations_are_consistent(how: str, tmp_path: Path) -> None:
    finished, report = alone(tmp_path, "invariants/recomputed", how)

    assert (finished.status, report["violations"], report["compared"]) == (0, [], {"recomputation": 6}), finished.text


@pytest.mark.parametrize(
    ("how", "step"),
    [
        ("dropout", 0),
        *(pytest.param(how, step, marks=MORE) for how, step in (("buffer", 0), ("branch", 0), ("weight", 1))),
    ],
)
def test_a_differing_recomputation_is_named_with_step_and_line(how: str, step: int, tmp_path: Path) -> None:
    finished, report = alone(tmp_path, "invariants/recomputed", how)

    assert finished.status == 1, finished.stderr
    (violation,) = report["violations"]
    assert (violation["invariant"], violation["step"], violation["ranks"]) == ("recomputation", step, [])
    assert violation["site"]["line"] == line("invariants/recomputed", f"SITE {how}")
    assert violation["asked_at"]["line"] == line("invariants/recomputed", "SITE call")


@MORE
@pytest.mark.parametrize(("how", "calls"), [("plain", 2), ("training", 0)])
def test_calls_with_and_without_grad_that_give_equal_results_are_consistent(
    how: str, calls: int, tmp_path: Path
) -> None:
    finished, report = alone(tmp_path, "invariants/evaluated", how)

    assert (finished.status, report["compared"].get("grad-mode", 0)) == (0 if calls else 2, calls), finished.text
    assert report["violations"] == []


@pytest.mark.parametrize("how", ["fast path", pytest.param("rounded", marks=MORE)])
def test_a_module_that_gives_different_results_under_no_grad_is_named_with_its_line(how: str, tmp_path: Path) -> None:
    finished, report = alone(tmp_path, "invariants/evaluated", how)

    assert finished.status == 1, finished.stderr
    (violation,) = report["violations"]
    assert (violation["invariant"], violation["what"], violation["step"]) == ("grad-mode", "Net", 0)
    assert violation["site"]["line"] == line("invariants/evaluated", f"SITE {how}")


@MORE
def test_level_step_finds_the_rank_group_and_step_without_a_line(tmp_path: Path) -> None:
    finished, report = checked(tmp_path, PROGRAM, "weight", options=("--level", "step"))

    assert finished.status == 1, finished.stderr
    (violation,) = report["violations"]
    assert (violation["step"], violation["what"], violation["site"]) == (3, "parameter module.0.weight", None)


@MORE
def test_level_step_finds_the_parameter_in_a_deeper_model(tmp_path: Path) -> None:
    finished, report = checked(tmp_path, PROGRAM, "deep", options=("--level", "step"))

    assert (finished.status, report["compared"]) == (1, {"replicas": 14}), finished.stderr
    (violation,) = report["violations"]
    assert (violation["step"], violation["what"]) == (3, "parameter module.0.0.weight")


@pytest.mark.parametrize("how", ["clean", pytest.param("mixed", marks=MORE)])
def test_gathered_parameters_that_equal_their_shards_are_consistent(how: str, tmp_path: Path) -> None:
    finished, report = checked(tmp_path, "invariants/sharded", how)

    assert (finished.status, report["violations"], report["compared"]) == (0, [], {"shards": 18}), finished.stderr


@MORE
@pytest.mark.parametrize(("how", "step", "culprits"), [("one rank", 0, [1]), ("stale", 1, [0, 1])])
def test_gathered_parameters_that_differ_from_their_shards_are_named(
    how: str, step: int, culprits: list[int], tmp_path: Path
) -> None:
    finished, report = checked(tmp_path, "invariants/sharded", how)

    assert finished.status == 1, finished.stderr
    (violation,) = report["violations"]
    assert (violation["invariant"], violation["step"], violation["ranks"]) == ("shards", step, culprits)
    assert violation["what"] == "parameter 0.layer.weight"
    assert violation["site"]["line"] == line("invariants/sharded", "SITE layer")


@MORE
@pytest.mark.parametrize(("how", "compared"), [("whole", 3), ("parts sent", 3), ("gathered", 0)])
def test_batches_that_are_shared_or_split_correctly_are_consistent(how: str, compared: int, tmp_path: Path) -> None:
    finished, report = checked(tmp_path, "invariants/divided", how)

    assert (finished.status, report["violations"]) == (0, []), finished.stderr
    assert report["compared"].get("shared-batches", 0) == compared


@pytest.mark.parametrize(
    ("how", "invariant", "step"),
    [("parts", "shared-batches", 0), pytest.param("gathered same", "split-batches", 1, marks=MORE)],
)
def test_batches_that_are_not_shared_or_split_correctly_are_named(
    how: str, invariant: str, step: int, tmp_path: Path
) -> None:
    finished, report = checked(tmp_path, "invariants/divided", how)

    assert finished.status == 1, finished.stderr
    (violation,) = report["violations"]
    assert (violation["invariant"], violation["step"], violation["ranks"]) == (invariant, step, [1])
    assert violation["site"]["line"] == line("invariants/divided", "SITE batches")


@MORE
def test_a_checkpoint_that_loads_what_was_saved_is_consistent(tmp_path: Path) -> None:
    finished, report = alone(tmp_path, "invariants/saved", "clean")

    assert (finished.status, report["violations"], report["compared"]) == (0, [], {"files": 1}), finished.stderr


@pytest.mark.parametrize("how", ["torn", pytest.param("older", marks=MORE)])
def test_a_checkpoint_that_loads_different_values_is_named_with_its_lines(how: str, tmp_path: Path) -> None:
    finished, report = alone(tmp_path, "invariants/saved", how)

    assert finished.status == 1, finished.stderr
    (violation,) = report["violations"]
    assert (violation["invariant"], violation["step"]) == ("files", 3)
    assert violation["names"][:2] == ["net.weight", "net.bias"]
    assert f"saved.py:{line('invariants/saved', 'SITE load')}" in (tmp_path / "page.html").read_text()
    assert violation["site"]["line"] == line("invariants/saved", "SITE load")
    assert violation["asked_at"]["line"] == line("invariants/saved", "SITE save")


@MORE
@pytest.mark.parametrize("name", sorted(ALL))
def test_clean_programs_have_no_violations(name: str, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(PROGRAMS), "OMP_NUM_THREADS": "1"}
    words = ("check", "--invariants", "--json", "report.json", "--", *ALL[name].words)
    finished = run(tmp_path, *words, environment=environment)

    report = json.loads((tmp_path / "report.json").read_text())
    assert report["violations"] == [], finished.text
    assert finished.status == (0 if report["compared"] else 2), finished.text


def test_options_for_several_runs_are_refused(tmp_path: Path) -> None:
    finished = run(tmp_path, "check", "--invariants", "-n", "3", "--", "python", "x.py")

    assert (finished.status, "cannot be combined with -n" in finished.text) == (2, True)
