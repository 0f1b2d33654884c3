"""If runs of a long program differ in an early step, the search for the cause uses runs that end soon after that step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from determinism.comparison.result import Comparison
from determinism.launch import runs
from determinism.launch.check import Check
from determinism.launch.runs import CheckRequest
from tests.e2e.commands import TINY

PROGRAM = """
import os, random, sys, time
sys.path.append({tiny!r})
import tinyframe as frame
weight = frame.full(8, {number})
for step in range(60):
    weight = frame.multiply(weight, frame.full(8, 0.5))
    frame.step(weight=weight)
    time.sleep(0.02)
"""


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A list for messages, in a separate folder, where a run of one second counts as long."""
    monkeypatch.setattr(runs, "LONGEST_UNASKED", 1.0)
    monkeypatch.chdir(tmp_path)
    return []


def checked(number: str, messages: list[str]) -> Comparison:
    Path("train.py").write_text(PROGRAM.format(tiny=str(TINY), number=number))
    return Check(CheckRequest([sys.executable, "train.py"], budget=60.0), warn=messages.append).run()


def test_runs_of_the_search_end_soon_after_the_difference(messages: list[str]) -> None:
    found = checked("random.random()", messages)

    assert any("runs of the first 2 of 60 steps" in message for message in messages)
    assert [cause.identifier for cause in found.causes] == ["seed-missing-python"]
    assert [(fix.verified, fix.steps) for fix in found.fixes] == [(True, 2)]
    assert found.diagnosis.limit is not None and "first 2 of 60 steps" in found.diagnosis.limit


def test_a_difference_that_only_the_second_run_shows_is_not_explained_by_equal_runs(messages: list[str]) -> None:
    found = checked("os.path.exists('first') and 2.0 or os.mkdir('first') or 0.5", messages)

    assert found.causes == ()
    said, *commands = (found.diagnosis.limit or "").split("\n")
    assert said.startswith("Runs of the first 2 of 60 steps were equal, so they cannot show the cause.")
    assert commands[-1].startswith("determinism check --explain -- ")


def test_trials_end_early_and_complete_runs_verify_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = checked("hash('salted') % 10**9 / 7", [])

    assert [cause.identifier for cause in found.causes] == ["hash-value"]
    outcomes = [experiment.outcome for experiment in found.experiments if experiment.equal]
    assert outcomes[0].endswith("bit-identical in their first 2 steps.") and outcomes[-1].endswith("bit-identical.")
    changed, _ = found.fixes
    assert changed.verified and changed.steps is None


@pytest.mark.thorough("launching")
def test_a_second_difference_beyond_the_end_of_early_runs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        PROGRAM.format(tiny=str(TINY), number="random.random()").replace(
            "    frame.step",
            "    weight = weight if step < 50 else frame.full(8, hash('salted') % 10**9 / 7)\n    frame.step",
        )
    )
    found = Check(CheckRequest([sys.executable, "train.py"], budget=120.0)).run()

    assert {cause.identifier for cause in found.causes} == {"seed-missing-python", "hash-value"}
    assert all(fix.verified and fix.steps is None for fix in found.fixes if fix.patch is not None)
