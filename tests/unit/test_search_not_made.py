"""Nothing is skipped silently: if no further runs searched for a cause, the report says why and how to search."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from determinism.comparison.divergence import Cause, Diagnosis, Fix, Status, Visible
from determinism.comparison.result import Comparison
from determinism.launch.further_runs import EvidenceRuns, ShortRuns, early_runs, short_runs, why_not_searched
from determinism.launch.runs import CheckRequest
from tests.builders import make_different, make_divergence, make_recorded, make_run
from tests.rendered import lines_of

COMMAND = ("python", "train.py")


def reason(seconds: float = 96.0, step: int = 3, steps: int = 400, **options: Any) -> str:
    comparison = make_different(
        runs=[make_run(1, seconds=seconds), make_run(2, seconds=seconds / 2)],
        first_divergence=make_divergence(step=step),
        recorded=make_recorded(steps=steps),
    )
    return why_not_searched(comparison, CheckRequest(COMMAND, **options))


def test_the_report_of_a_long_run_says_how_long_a_search_would_take() -> None:
    assert reason() == (
        "No cause was searched for: a run took 96 s, and for runs of 60 s or more the search needs to be requested. "
        "To search:\ndeterminism check --explain --steps 5 -- python train.py  # up to 60 s\ndeterminism check "
        "--explain -- python train.py  # up to 15 minutes"
    )


def test_an_interrupt_between_runs_for_evidence_keeps_the_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    said: list[str] = []
    series: Any = SimpleNamespace(max_disk=None)
    output: Any = SimpleNamespace(path=tmp_path, discard=lambda name, with_log=True: None)
    runs = EvidenceRuns(series, output, lambda *arguments: pytest.fail("a run was announced"), said.append)
    monkeypatch.setattr(runs, "_capture", interrupted)
    found = make_different(runs=[make_run(1), make_run(2)])

    assert runs.gather(found, ()) is found
    assert runs.interrupt_status == 130
    assert said == ["Interrupted before values were compared; the findings so far are kept."]


def test_a_late_step_needs_whole_runs() -> None:
    assert "--steps" not in reason(step=399)
    assert "--steps" not in reason(steps=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"explain": False}, "--no-explain was given"),
        ({"budget": 0.0}, "--budget 0 was given"),
        ({"fail_fast": True}, "--fail-fast ends runs as soon as they differ"),
    ],
)
def test_a_search_that_the_user_ruled_out(options: dict[str, Any], said: str) -> None:
    text = reason(seconds=3.0, **options)
    assert text.startswith("No cause was searched for") and said in text
    assert "determinism check --explain -- python train.py" in text


def test_secrets_of_the_command_are_not_repeated() -> None:
    text = why_not_searched(make_different(), CheckRequest(("python", "train.py", "--api-key", "s3cret-of-mine")))
    assert "s3cret" not in text and "--api-key" in text


def test_the_report_shows_the_reason_and_commands_to_copy() -> None:
    lines = lines_of(make_different(limit=reason()), width=60)
    assert any(line.startswith("  not searched      A run took") for line in lines)
    assert "      determinism check --explain --steps 5 -- python train.py  # up to 60 s" in lines


# Long programs whose runs differ early are searched with runs that end soon after the difference.


def found(seconds: float = 96.0, step: int = 3, visible: int | None = 3, steps: int = 400) -> Comparison:
    return make_different(
        runs=[make_run(1, seconds=seconds), make_run(2, seconds=seconds)],
        first_divergence=make_divergence(step=step),
        first_visible=None if visible is None else Visible(visible, "loss"),
        recorded=make_recorded(steps=steps),
    )


def test_runs_go_as_far_as_the_loss_shows_the_difference() -> None:
    assert short_runs(found(step=3, visible=9), None) == ShortRuns(11, 96.0 * 11 / 400, 400)


def test_the_time_before_the_first_step_counts() -> None:
    assert short_runs(found(), 0.2) == ShortRuns(5, 96.0 - 0.2 * 395, 400)
    assert short_runs(found(), 0.01) is None, "nearly all of the time goes by before the first step"


@pytest.mark.parametrize(
    "comparison",
    [found(seconds=59.0), found(visible=None), found(step=390, visible=390), found(steps=0)],
    ids=["short", "not seen at the end of a step", "late", "without steps"],
)
def test_otherwise_runs_are_whole(comparison: Comparison) -> None:
    assert short_runs(comparison, None) is None


def test_a_busy_machine_does_not_make_a_run_long() -> None:
    slow = replace(make_run(1, seconds=96.0), waited=80.0)
    comparison = replace(found(), runs=[slow, slow])
    assert short_runs(comparison, None) is None
    assert "up to 8 minutes" in why_not_searched(comparison, CheckRequest(COMMAND, explain=False))


# The trials of a search may also end early in any program that spends most of its time in later steps.


def run_that_noted(folder: Path, **note: str) -> Any:
    (folder / "leftovers-1.jsonl").write_text(json.dumps({**note, "existed": True, "at": 1}) + "\n")
    return SimpleNamespace(folder=folder)


def test_trials_end_early_if_that_saves_a_fifth_of_their_time(tmp_path: Path) -> None:
    trace = run_that_noted(tmp_path, wrote=str(Path.cwd() / "losses.csv"))
    assert early_runs(found(seconds=7.0), 0.01, [trace]) == ShortRuns(5, 7.0 - 0.01 * 395, 400)
    assert early_runs(found(seconds=21.0), 0.01, [trace]) is None
    assert early_runs(found(seconds=7.0), None, [trace]) is None, "too few steps to tell how long one takes"


@pytest.mark.parametrize(
    ("removed", "may_end_early"),
    [("checkpoint.tmp", False), ("/var/lock/train.lock", False), (f"{tempfile.gettempdir()}/t7x2", True)],
)
def test_a_program_that_removes_its_files_runs_to_its_end(tmp_path: Path, removed: str, may_end_early: bool) -> None:
    trace = run_that_noted(tmp_path, removed=os.path.abspath(removed))
    assert (early_runs(found(seconds=7.0), 0.01, [trace]) is not None) is may_end_early
    assert (short_runs(found(seconds=96.0), 0.2, [trace]) is not None) is may_end_early


def test_results_of_short_runs_are_not_claimed_for_whole_ones() -> None:
    fixes = (Fix("a", "Seed it", "seed()", verified=True, runs=3), Fix("b", "Or so", "so()"))
    noted = ShortRuns(5, 1.0, 400).noted(Diagnosis(fixes=fixes))
    lines = lines_of(
        make_different(
            causes=[Cause("a", "A cause", Status.CONFIRMED, (), (), ())], fixes=list(noted.fixes), limit=noted.limit
        )
    )
    assert any("(verified by 3 equal runs of 5 steps)" in line for line in lines)
    assert any("check the changed program to its end" in line for line in lines)
    assert [fix.steps for fix in noted.fixes] == [5, None]
