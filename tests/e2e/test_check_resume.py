"""`determinism check-resume` says whether a resumed run continues like the full run, and names what its checkpoint lacks."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.e2e.checking import PROGRAMS, VALIDATOR, line
from tests.e2e.commands import Finished, run

PROGRAM = "resumed/checkpoints"
FILLED_IN = ("--steps", "{steps}", "--save", "{save}", "--load", "{load}")


def check_resume(folder: Path, *arguments: str) -> Finished:
    finished = run(folder, "check-resume", "--json", "report.json", *arguments)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    VALIDATOR.validate(report)
    assert finished.status == {"same": 0, "different": 1, "inconclusive": 2}[report["verdict"]], finished.text
    return finished._replace(report=report)


def one_command(folder: Path, *arguments: str) -> Finished:
    command = [sys.executable, str(PROGRAMS / f"{PROGRAM}.py"), *FILLED_IN, *arguments]
    return check_resume(folder, "--steps", "5", "--at", "2", "--", *command)


def test_a_complete_checkpoint_is_the_same(tmp_path: Path) -> None:
    finished = one_command(tmp_path)
    report = finished.report

    assert finished.status == 0, finished.text
    assert report is not None and report["missing"] == []
    assert report["recorded"]["steps"] == 3 and report["recorded"]["records"] > 30
    assert [run["command"][3] for run in report["runs"]] == ["5", "5", "2"]
    assert "Same: the resumed run continues the full one" in finished.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json"]


@pytest.mark.parametrize(
    ("part", "identifier"),
    [("optimizer", "optimizer"), pytest.param("rng", "rng-torch", marks=pytest.mark.thorough("resume-and-batch"))],
)
def test_missing_state_is_named_with_its_line(tmp_path: Path, part: str, identifier: str) -> None:
    finished = one_command(tmp_path, "--without", part)
    report = finished.report

    assert finished.status == 1, finished.text
    assert report is not None
    assert [missing["id"] for missing in report["missing"]] == [identifier]
    site = report["missing"][0]["site"]
    assert (Path(site["file"]), site["line"]) == (PROGRAMS / f"{PROGRAM}.py", line(PROGRAM))
    assert report["first_divergence"]["step"] >= 2
    # The program reads the state of the generator, but does not save it.
    assert ("not restored" if part == "rng" else "not saved") in finished.text and "saved at" in finished.text
    (fix,) = report["fixes"]
    assert fix["id"] == identifier and "saved[" in fix["code"]
    # The report is kept beside the traces, for `determinism report`.
    (kept,) = (tmp_path / ".determinism").glob("*/report.json")
    assert json.loads(kept.read_text(encoding="utf-8"))["missing"] == report["missing"]
    assert f"determinism report -v {kept.parent.relative_to(tmp_path)}" in " ".join(finished.text.split())
    # Only the program itself can save an optimizer; a generator can be restored from outside.
    assert fix["verified"] is (part == "rng") is ("Verified: " in finished.text)


@pytest.mark.parametrize(("without", "missing"), [("", []), ("rng", ["rng-torch"])])
def test_a_run_may_continue_training_after_saving(tmp_path: Path, without: str, missing: list[str]) -> None:
    """Like programs that save periodically; the generator is restored to its state at the time of saving."""
    finished = one_command(tmp_path, "--beyond", "--without", without)
    report = finished.report

    assert report is not None and [one["id"] for one in report["missing"]] == missing, finished.text
    assert finished.status == len(missing)
    assert [fix["verified"] for fix in report["fixes"]] == [True] * len(missing)


def epochs(*without: str) -> list[str]:
    program = [sys.executable, str(PROGRAMS / "resumed" / "epochs.py"), "--file", "last.pt", "--without", *without]
    runs = {"full": ["--epochs", "4"], "first": ["--epochs", "2"], "resumed": ["--epochs", "4", "--load"]}
    return [word for run, arguments in runs.items() for word in (f"--{run}", shlex.join([*program, *arguments]))]


@pytest.mark.thorough("resume-and-batch")
@pytest.mark.parametrize("without", [("python",), ("torch", "numpy")])
def test_restoring_generators_from_outside_is_verified_as_a_fix(tmp_path: Path, without: tuple[str, ...]) -> None:
    """Each run overwrites the checkpoint, and the next epoch is shuffled by the generators that were not saved."""
    finished = check_resume(tmp_path, *epochs(*without))
    report = finished.report

    assert finished.status == 1, finished.text
    assert report is not None
    expected = {f"rng-{name}" for name in without}
    assert {missing["id"] for missing in report["missing"]} == expected
    assert {fix["id"] for fix in report["fixes"] if fix["verified"]} == expected, finished.text


@pytest.mark.parametrize(
    ("without", "identifier", "verified"),
    [
        ("generator", "rng-python", True),
        pytest.param("buffer", "own-data", False, marks=pytest.mark.thorough("resume-and-batch")),
    ],
)
def test_without_a_data_loader_generators_are_restored_before_the_first_step(
    tmp_path: Path, without: str, identifier: str, verified: bool
) -> None:
    """If the program itself restored the generator and the runs still differ, the cause is something else."""
    program = [sys.executable, str(PROGRAMS / "resumed" / "drawing.py"), *FILLED_IN, "--without", without]
    finished = check_resume(tmp_path, "--steps", "5", "--at", "2", "--", *program)

    assert finished.status == 1 and finished.report is not None, finished.text
    assert [missing["id"] for missing in finished.report["missing"]] == [identifier], finished.text
    assert [fix["verified"] for fix in finished.report["fixes"]] == [verified]


def test_no_fix_is_tried_with_no_explain(tmp_path: Path) -> None:
    finished = check_resume(tmp_path, "--no-explain", *epochs("python"))

    assert finished.report is not None
    assert [fix["verified"] for fix in finished.report["fixes"]] == [False]
    assert "put back" not in finished.stderr


def test_three_commands_with_a_determinism_state_are_the_same(tmp_path: Path) -> None:
    """Two workers, shuffling, autocast, a scaler, and a loader that continues in the middle of an epoch."""
    program = shlex.join([sys.executable, str(PROGRAMS / "resumed" / "states.py")])
    finished = check_resume(
        tmp_path, "--full", program, "--first", f"{program} --save middle", "--resumed", f"{program} --load middle"
    )

    assert finished.status == 0, finished.text


@pytest.mark.thorough("resume-and-batch")
def test_each_rank_continues_from_its_own_state(tmp_path: Path) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = shlex.join([*start, str(PROGRAMS / "resumed" / "ranks.py")])
    runs = [word for run in ("full", "first", "resumed") for word in (f"--{run}", f"{program} {run}")]
    finished = check_resume(tmp_path, *runs)

    assert finished.status == 0, finished.text
    assert finished.report is not None and finished.report["recorded"]["processes"] == 2


@pytest.mark.thorough("resume-and-batch")
def test_a_first_run_that_differs_is_not_a_resume_problem(tmp_path: Path) -> None:
    finished = one_command(tmp_path, "--unseeded")

    assert finished.trouble == ["resume-first-departs"]
    assert "determinism check" in finished.text
    assert finished.report is not None
    (fix,) = finished.report["fixes"]
    assert (fix["id"], fix["verified"]) == ("run", True) and "--seed 1" in fix["code"]
    assert "with it the resumed run was equal" in finished.text


def test_a_failed_run_is_reported(tmp_path: Path) -> None:
    finished = one_command(tmp_path, "--fail")

    assert finished.trouble == ["resume-run-failed"]
    assert "full run ended with exit status 3" in finished.text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--full and --first and --resumed are missing"),
        (("--full", "python a.py", "--first", "python a.py"), "--resumed is missing"),
        (("--full", "python a.py", "--", "python", "a.py"), "Three commands and one"),
        (("--", "python", "a.py", "{save}", "{load}"), "contains no {steps}"),
        (
            ("--at", "8", "--", "python", "{steps}", "{save}", "{load}"),
            "--at 8 is not between 0 and --steps 8, so nothing was run. Give --at",
        ),
        (("--full", "python 'a", "--first", "a", "--resumed", "a"), "cannot be split into words"),
    ],
)
def test_incomplete_commands_are_refused(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    finished = check_resume(tmp_path, *arguments)

    assert finished.trouble == ["resume-commands"]
    assert text in finished.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json"]
