"""A difference late in a long run is found through ledgers of the steps, and only a few steps around it are recorded op by op."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from determinism.trace.ledger import read_ledger
from determinism.trace.opening import open_trace
from determinism.trace.schema import MANIFEST_FILE
from tests.e2e.checking import VALIDATOR
from tests.e2e.commands import TINY, Finished, run
from tests.e2e.test_interrupting import interrupt, script

NARROWING = str(TINY / "narrowing.py")
PLACES = ("{save}", "{load}")


def narrowed(
    folder: Path,
    how: str,
    *,
    at: int = 207,
    steps: str = "300",
    options: tuple[str, ...] = (),
    places: tuple[str, ...] = (),
) -> tuple[Finished, dict[str, Any]]:
    """Narrow the program; return how the command ended, and the report."""
    words = (sys.executable, NARROWING, how, str(at), steps, *places)
    finished = run(folder, "narrow", "--json", "report.json", *options, "--", *words)
    report = json.loads((folder / "report.json").read_text())
    VALIDATOR.validate(report)
    return finished, report


def test_a_planted_difference_is_pinned_to_its_step_line_and_cause(tmp_path: Path) -> None:
    finished, report = narrowed(tmp_path, "planted")

    assert finished.status == 1, finished.stderr
    first, narrowing = report["first_divergence"], report["narrowing"]
    assert first["step"] == 207
    assert report["causes"][0]["sites"][0]["code"].strip() == "factor = random.random()"
    assert [cause["id"] for cause in report["causes"]] == ["seed-missing-python"]
    assert report["causes"][0]["status"] == "confirmed"
    assert (narrowing["step"], narrowing["pinned"], narrowing["groups"][0]) == (207, True, "parameters")
    assert narrowing["steps"] == [300, 300]
    assert [(window["first"], window["last"]) for window in narrowing["windows"]] == [(205, 209)]
    assert b"narrowed" in finished.stdout and b"cost" in finished.stdout


def test_only_the_window_is_recorded_op_by_op(tmp_path: Path) -> None:
    narrowed(tmp_path, "planted", options=("--no-explain", "--output", "out"))

    for number in (1, 2):
        (process,) = open_trace(tmp_path / "out" / "window-1" / f"run-{number}").processes
        steps = {int(step) for chunk in process.chunks() for step in chunk.columns["step"]}
        assert steps <= set(range(205, 211)) and 207 in steps
        assert len(read_ledger(process.folder)) == 210


def test_equal_runs_are_the_same_after_two_runs_and_leave_no_files(tmp_path: Path) -> None:
    finished, report = narrowed(tmp_path, "clean")

    assert finished.status == 0, finished.stderr
    assert (report["verdict"], len(report["runs"])) == ("same", 2)
    assert report["narrowing"] is None
    assert len(list(tmp_path.glob("ran-*"))) == 2
    assert not list(tmp_path.rglob(MANIFEST_FILE))


def test_a_difference_that_does_not_recur_is_reported_as_such(tmp_path: Path) -> None:
    finished, report = narrowed(tmp_path, "once")

    assert finished.status == 1
    narrowing = report["narrowing"]
    assert (narrowing["step"], narrowing["pinned"]) == (207, False)
    assert [(window["runs"], window["differs"]) for window in narrowing["windows"]] == [(2, False), (2, False)]
    text = " ".join(finished.stdout.decode().split())
    assert "did not recur in 4 runs" in text
    assert report["causes"] == []


def test_a_difference_at_a_different_step_in_each_run_is_reported_to_vary(tmp_path: Path) -> None:
    finished, report = narrowed(tmp_path, "wandering", at=50, steps="60")

    assert finished.status == 1
    narrowing = report["narrowing"]
    assert (narrowing["step"], narrowing["pinned"]) == (30, False)
    assert [window["parted_at"] for window in narrowing["windows"]] == [10, 0]
    assert "The step varies from run to run" in " ".join(finished.stdout.decode().split())


def test_a_program_that_resumes_is_recorded_from_a_checkpoint_just_before_the_difference(tmp_path: Path) -> None:
    options = ("--steps", "300", "--no-explain")
    _, report = narrowed(tmp_path, "planted", steps="{steps}", options=options, places=PLACES)

    narrowing = report["narrowing"]
    assert (narrowing["checkpoint"], narrowing["pinned"], report["first_divergence"]["step"]) == (205, True, 207)
    assert (
        f"determinism narrow --steps 300 -- {sys.executable} {NARROWING} planted 207 '{{steps}}'" in report["diagnosis"]
    )
    assert len(list(tmp_path.glob("ran-*"))) == 5


def test_a_program_that_does_not_resume_bit_exactly_is_recorded_from_the_beginning(tmp_path: Path) -> None:
    options = ("--steps", "300", "--no-explain")
    finished, report = narrowed(tmp_path, "forgetful", steps="{steps}", options=options, places=PLACES)

    narrowing = report["narrowing"]
    assert (narrowing["checkpoint"], narrowing["pinned"], report["first_divergence"]["step"]) == (0, True, 207)
    assert "does not continue bit-exactly" in finished.stderr


def test_a_stored_run_is_the_first_one(tmp_path: Path) -> None:
    words = (sys.executable, NARROWING, "planted", "207", "300")
    assert run(tmp_path, "record", "--level", "step", "-o", "stored", "--", *words).status == 0
    finished, report = narrowed(tmp_path, "planted", options=("--ledger", "stored", "--no-explain"))

    assert finished.status == 1
    assert (report["narrowing"]["step"], report["narrowing"]["pinned"]) == (207, True)
    assert f"determinism narrow --ledger stored -- {sys.executable} {NARROWING}" in report["diagnosis"]
    assert len(list(tmp_path.glob("ran-*"))) == 4
    assert (tmp_path / "stored" / MANIFEST_FILE).exists()


def test_a_program_that_changed_since_the_stored_run_is_reported_to_repeat_itself(tmp_path: Path) -> None:
    words = (sys.executable, NARROWING, "once", "207", "300")
    assert run(tmp_path, "record", "--level", "step", "-o", "stored", "--", *words).status == 0
    finished, report = narrowed(tmp_path, "once", options=("--ledger", "stored"))

    assert finished.status == 1
    assert (report["narrowing"]["repeats_itself"], len(report["narrowing"]["windows"])) == (True, 1)
    text = " ".join(finished.stdout.decode().split())
    assert "so the program repeats itself" in text and "--from-step 205 --steps 210" in text


def test_check_narrows_on_request(tmp_path: Path) -> None:
    words = (sys.executable, NARROWING, "planted", "207", "300")
    finished = run(tmp_path, "check", "--narrow", "--no-explain", "--json", "report.json", "--", *words)

    assert finished.status == 1, finished.stderr
    assert json.loads((tmp_path / "report.json").read_text())["narrowing"]["step"] == 207


@pytest.mark.parametrize(
    ("options", "words", "identifier"),
    [
        ((), ("planted", "2", "{steps}", "{save}"), "narrow-command"),
        ((), ("planted", "2", "{steps}", "{save}", "{load}"), "narrow-command"),
        (("--ledger", "missing"), ("planted", "2", "3"), "trace-missing"),
    ],
)
def test_a_command_that_cannot_be_narrowed_is_refused_before_it_runs(
    options: tuple[str, ...], words: tuple[str, ...], identifier: str, tmp_path: Path
) -> None:
    finished = run(tmp_path, "narrow", "--json", "report.json", *options, "--", sys.executable, NARROWING, *words)

    assert finished.status == 2
    assert json.loads((tmp_path / "report.json").read_text())["trouble"][0]["id"] == identifier
    assert not list(tmp_path.glob("ran-*"))


def test_a_failing_program_is_not_narrowed(tmp_path: Path) -> None:
    finished, report = narrowed(tmp_path, "planted", steps="none")

    assert finished.status == 2
    assert report["trouble"][0]["id"] in ("narrow-run-failed", "nothing-recorded")


def test_the_ledgers_findings_are_reported_when_a_run_of_the_window_fails(tmp_path: Path) -> None:
    finished, report = narrowed(tmp_path, "breaks")

    assert (finished.status, report["verdict"], report["narrowing"]["step"]) == (1, "different", 207)


def test_ctrl_c_in_the_second_run_names_that_run_and_keeps_both_traces(tmp_path: Path) -> None:
    words = script(
        tmp_path,
        """
        import pathlib, time, torch
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()
        if pathlib.Path("once").exists():
            pathlib.Path("waiting").touch()
            time.sleep(600)
        pathlib.Path("once").touch()
        """,
    )
    ended = interrupt(tmp_path, "narrow", "--json", "r.json", "--output", "out", "--", *words)

    assert ended.status == 128 + signal.SIGINT
    message = " ".join(ended.stderr.split())
    assert "into run 2, before there was a verdict" in message
    assert "run-1, run-2 (incomplete)." in message
    report = json.loads((tmp_path / "r.json").read_text())
    assert [run["stopped_by"] for run in report["runs"]] == [None, "interrupt"]


def test_the_ledgers_findings_are_reported_after_ctrl_c_in_a_window(tmp_path: Path) -> None:
    words = (sys.executable, NARROWING, "waits", "207", "300")
    ended = interrupt(tmp_path, "narrow", "--json", "r.json", "--output", "out", "--", *words)

    assert ended.status == 128 + signal.SIGINT
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["verdict"], report["narrowing"]["step"], report["narrowing"]["windows"]) == ("different", 207, [])
